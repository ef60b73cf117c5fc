"""Read the machine's sensors once a second and apply the owner's limits to the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from peer.donor.control.saved_state import SavedState
from peer.donor.machine.sensors import Sensors
from peer.limits.decide import (
    ALL,
    Action,
    Allow,
    Allowed,
    Event,
    FinishAndStop,
    LimitsCore,
    OwnerAsked,
    ReadingsTaken,
    Rules,
    RulesChanged,
    SaveRequest,
    Wish,
)
from peer.limits.quota import MonthUse, Quota
from peer.limits.readings import Readings
from rollcast.runtime.errors import RunFolderError

log = structlog.get_logger()

LOOK_S = 1.0
_SAVE_S = 60.0  # between two writes of this month's traffic: a crash loses at most this much of the count


class LimitsEnforcer:
    """The shell around LimitsCore: it reads clocks and sensors, and carries out the core's actions.

    Args:
        moved: returns the bytes that this process has sent and received so far beyond the local network; they only
            rise.
        apply: applies what is allowed; called on the event loop whenever that changes, and once at startup.
        finish: completes the work that is held, then ends the process unless ``until`` names a time to resume.
        holds_work: returns whether leases or finished rollouts are held.
        local_now: returns the owner's wall clock.
    """

    def __init__(
        self,
        core: LimitsCore,
        sensors: Sensors,
        memory: SavedState,
        *,
        moved: Callable[[], tuple[int, int]],
        apply: Callable[[Allowed], None],
        finish: Callable[[datetime | None], None],
        holds_work: Callable[[], bool],
        local_now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._core = core
        self._sensors = sensors
        self._memory = memory
        self._moved = moved
        self._apply = apply
        self._finish = finish
        self._holds_work = holds_work
        self._local_now = local_now
        self._moved_before = (0, 0)
        self._saved_at_s = float("-inf")
        self._unsaved: RunFolderError | None = None  # why the last save failed
        self.allowed: Allowed = ALL
        """The operations allowed now."""
        self.readings = Readings()
        """The last sensor readings."""

    @property
    def used(self) -> MonthUse:
        """The traffic counted this month."""
        return self._core.quota.use

    def ask(self, wish: Wish, for_s: float | None = None) -> Allowed:
        """Carry out a request of the owner at once. Return what is allowed from now on.

        Raises:
            RunFolderError: the request is carried out, but cannot be written to disk: a restart forgets it.
        """
        log.info("owner request", wish=wish, for_s=for_s)
        self._handle(OwnerAsked(wish, for_s))
        if self._unsaved is not None:
            what = "the peer does so now, but forgets it when it restarts"
            raise RunFolderError(what, cause=self._unsaved.cause, fix=self._unsaved.fix)
        return self.allowed

    def change(self, rules: Rules, quota: Quota) -> None:
        """Replace the limits. Ceilings are judged with the next readings.

        Args:
            quota: the new quota, starting from the traffic counted so far.
        """
        self._sensors.wants_idle = rules.ceilings.idle_s_min is not None
        self._handle(RulesChanged(rules, quota))

    async def run(self) -> None:
        """Read sensors and apply limits every LOOK_S seconds until cancelled."""
        try:
            while True:
                self.readings = await asyncio.to_thread(self._sensors.read)
                self.apply_readings(self.readings)
                await asyncio.sleep(LOOK_S)
        finally:
            self._save()

    def apply_readings(self, readings: Readings) -> None:
        """Apply the limits to these readings and to the traffic since the last call."""
        sent, received = self._moved()
        sent_before, received_before = self._moved_before
        self._moved_before = sent, received
        self._handle(ReadingsTaken(readings, sent - sent_before, received - received_before))
        asked = self._core.asked
        if asked.wish == "finish" and asked.until is not None and not self._holds_work():
            # The work that was held is complete: until the time to resume, "finish" means a pause.
            self._handle(OwnerAsked("pause", max(0.0, (asked.until - self._local_now()).total_seconds())))

    def _handle(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        for action in self._core.handle(event, now, self._local_now()):
            self._do(action)
        if now - self._saved_at_s >= _SAVE_S:
            self._save()

    def _do(self, action: Action) -> None:
        match action:
            case Allow(allowed):
                self.allowed = allowed
                log.info("allowed", state=allowed.state, compute=allowed.compute, send=allowed.send, why=allowed.reason)
                self._apply(allowed)
            case SaveRequest():
                self._save()
            case FinishAndStop(until):
                self._finish(until)

    def _save(self) -> None:
        """Write the owner's request and this month's traffic; a disk that refuses must not end the peer's work."""
        self._saved_at_s = asyncio.get_running_loop().time()
        try:
            self._memory.save(self._core.asked, self._core.quota.use)
        except RunFolderError as error:
            if self._unsaved is None:
                log.warning("this month's traffic and the owner's request are not saved", cause=error.cause)
            self._unsaved = error
        else:
            self._unsaved = None
