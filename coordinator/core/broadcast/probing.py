"""Choose which peer measures its uplink next: few at a time, spaced, and never while it receives a version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coordinator.core.events.actions import SendProbe
from rollcast.wire import limits
from rollcast.wire.ids import PeerId

_MEMBERS_A_PROBE = 64  # members for each probe that may run at the same time
_ANSWER_WITHIN_S = 15.0  # beyond the probe's own time, because the result arrives with a heartbeat
_CONFIDENCE_ENOUGH = 0.3  # in an uplink's rate; at this confidence it is not probed
_AGAIN_AFTER_S = 600.0  # doubled with every probe of the same peer that brought no result
_DOUBLINGS_MAX = 6
_RECHECK_S = 10.0  # after no peer could be probed


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Bounds of probing. With ``bytes_max`` 0 no peer is asked to send padding."""

    bytes_max: int = limits.PROBE_BYTES_MAX
    seconds_max: float = 2.0
    spacing_s: float = 1.0

    @property
    def enabled(self) -> bool:
        return self.bytes_max > 0


@dataclass(slots=True)
class _Asked:
    """A peer's newest probe. ``doublings`` is how often the time until its next one was doubled."""

    probe_id: int
    to_peer: PeerId
    until: float
    again_at: float
    doublings: int


class Probing:
    """Keeps each peer's newest probe, running or over, and chooses the next. Times are the core's clock in seconds."""

    def __init__(self, settings: ProbeSettings) -> None:
        self.settings = settings
        self._asked: dict[PeerId, _Asked] = {}
        self._running: dict[PeerId, _Asked] = {}
        self._not_before = float("-inf")
        self._last_id = 0

    @property
    def running(self) -> list[PeerId]:
        """The peers that are measuring their uplinks."""
        return list(self._running)

    def is_time(self, member_count: int, now: float) -> bool:
        """Whether another probe may start, if some peer needs one."""
        if now < self._not_before or not self.settings.enabled:
            return False
        for peer_id in [peer_id for peer_id, asked in self._running.items() if now >= asked.until]:
            del self._running[peer_id]
        return len(self._running) <= member_count // _MEMBERS_A_PROBE

    def reported(self, peer_id: PeerId, probe_id: int) -> None:
        """Note the last probe that the peer carried out; if that is the one it was asked for, the probe is over."""
        asked = self._running.get(peer_id)
        if asked is not None and asked.probe_id == probe_id:
            asked.doublings = -1
            del self._running[peer_id]

    def next(
        self,
        uplinks: Iterable[tuple[PeerId, float]],
        now: float,
        *,
        is_idle: Callable[[PeerId], bool],
        targets_of: Callable[[PeerId], Iterable[PeerId]],
    ) -> list[SendProbe]:
        """Return the next probe, of the idle peer whose uplink is known least; empty if no peer needs one.

        Few peers need one, so ``is_idle`` and ``targets_of`` are called for these alone.

        Args:
            uplinks: members whose uplink matters to the plan and whose upload costs nothing, with the confidence in
                what is known of it, 0 to 1.
            is_idle: whether the member holds the newest version, and receives and relays nothing.
            targets_of: neighbours to which the member may send padding, the best first.
        """
        self._not_before = now + self.settings.spacing_s
        busy = {one for peer_id, asked in self._running.items() for one in (peer_id, asked.to_peer)}
        due = [one for one in uplinks if self._is_due(one[0], one[1], now)]
        for peer_id, _ in sorted(due, key=lambda one: one[1]):
            if peer_id in busy or not is_idle(peer_id):
                continue
            for target in targets_of(peer_id):
                if target not in busy and is_idle(target):
                    return [self._ask(peer_id, target, now)]
        self._not_before = now + _RECHECK_S
        return []

    def _is_due(self, peer_id: PeerId, confidence: float, now: float) -> bool:
        if confidence >= _CONFIDENCE_ENOUGH:
            return False
        asked = self._asked.get(peer_id)
        return asked is None or now >= asked.again_at

    def _ask(self, peer_id: PeerId, to_peer: PeerId, now: float) -> SendProbe:
        bytes_max = min(self.settings.bytes_max, limits.PROBE_BYTES_MAX)
        before = self._asked.get(peer_id)
        doublings = 0 if before is None else min(before.doublings + 1, _DOUBLINGS_MAX)
        until = now + self.settings.seconds_max + _ANSWER_WITHIN_S
        self._last_id += 1
        asked = _Asked(self._last_id, to_peer, until, now + _AGAIN_AFTER_S * 2**doublings, doublings)
        self._asked[peer_id] = self._running[peer_id] = asked
        return SendProbe(peer_id, self._last_id, to_peer, bytes_max, self.settings.seconds_max)

    def left(self, peer_id: PeerId) -> None:
        """Discard the probe of a peer that left."""
        self._asked.pop(peer_id, None)
        self._running.pop(peer_id, None)
