"""Looks at the machine once a second and lets the process do what its owner allows."""

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

log = structlog.get_logger()

LOOK_S = 1.0
_SAVE_S = 60.0  # between two writes of this month's traffic


class LimitsEnforcer:
    """The shell around LimitsCore.

    Args:
        moved: bytes sent and received so far beyond the local network, by this process; they only rise.
        apply: do this from now on; called on the event loop whenever it changes, and once at the start.
        finish: complete what is held, and end unless ``until`` says when to go on.
        holds_work: whether leases or finished rollouts are held.
        local_now: the owner's wall clock.
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
        self.allowed: Allowed = ALL
        """What is done now."""
        self.readings = Readings()
        """What the last look saw."""

    @property
    def used(self) -> MonthUse:
        """What was moved this month."""
        return self._core.quota.use

    def ask(self, wish: Wish, for_s: float | None = None) -> Allowed:
        """The owner asks for something; done at once. Returns what is allowed now.

        Raises:
            RunFolderError: it cannot be remembered.
        """
        log.info("the owner asks", wish=wish, for_s=for_s)
        self._handle(OwnerAsked(wish, for_s))
        return self.allowed

    def change(self, rules: Rules, quota: Quota) -> None:
        """Keep other limits from now on; what they mean shows with the next look.

        Args:
            quota: with what was counted so far.

        Raises:
            RunFolderError: this month's traffic cannot be written.
        """
        self._sensors.wants_idle = rules.ceilings.idle_s_min is not None
        self._handle(RulesChanged(rules, quota))

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            RunFolderError: what was asked for cannot be written.
        """
        try:
            while True:
                self.readings = await asyncio.to_thread(self._sensors.look)
                self.look(self.readings)
                await asyncio.sleep(LOOK_S)
        finally:
            self._save()

    def look(self, readings: Readings) -> None:
        """Take one look in."""
        sent, received = self._moved()
        sent_before, received_before = self._moved_before
        self._moved_before = sent, received
        self._handle(ReadingsTaken(readings, sent - sent_before, received - received_before))
        asked = self._core.asked
        if asked.wish == "finish" and asked.until is not None and not self._holds_work():
            # What was held is complete: from here on it is a pause.
            self._handle(OwnerAsked("pause", max(0.0, (asked.until - self._local_now()).total_seconds())))

    def _handle(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        for action in self._core.handle(event, now, self._local_now()):
            self._do(action)
        if now - self._saved_at_s >= _SAVE_S:
            self._saved_at_s = now
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
        self._memory.save(self._core.asked, self._core.quota.use)
