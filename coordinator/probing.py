"""Which peer measures its uplink next: few at a time, spaced, and never while a version is on its way to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.actions import SendProbe
from rollcast.wire import limits
from rollcast.wire.ids import PeerId

_MEMBERS_A_PROBE = 64  # among so many one probe is under way at a time
_ANSWER_WITHIN_S = 15.0  # beyond the probe's own time: heartbeats bring the result
_CONFIDENCE_ENOUGH = 0.3  # in an uplink's rate
_AGAIN_AFTER_S = 600.0  # doubled with every probe of the same peer that brought nothing
_DOUBLINGS_MAX = 6
_LOOK_AGAIN_S = 10.0  # after nobody needed a probe


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Bounds of probing. ``bytes_max`` 0: nobody is asked to send padding."""

    bytes_max: int = limits.PROBE_BYTES_MAX
    seconds_max: float = 2.0
    spacing_s: float = 1.0

    @property
    def enabled(self) -> bool:
        return self.bytes_max > 0


@dataclass(frozen=True, slots=True)
class ProbeCandidate:
    """A member that may take part in a probe now: it holds the newest version and receives nothing.

    Args:
        wanted: its uplink matters to the plan, and its upload costs nothing.
        confidence: in its uplink's rate, 0 to 1.
        done_probe_id: the last probe that it reported.
        targets: neighbours that it may send padding to, the best first.
    """

    peer_id: PeerId
    wanted: bool
    confidence: float
    done_probe_id: int
    targets: tuple[PeerId, ...]


@dataclass(slots=True)
class _Asked:
    probe_id: int
    to_peer: PeerId
    until: float
    again_at: float
    doublings: int
    running: bool = True


class Probing:
    """The probes under way. Times are the core's clock in seconds."""

    def __init__(self, settings: ProbeSettings) -> None:
        self.settings = settings
        self._asked: dict[PeerId, _Asked] = {}
        self._not_before = float("-inf")
        self._last_id = 0

    def is_time(self, member_count: int, now: float) -> bool:
        """Whether another probe may start, if anybody needs one."""
        for asked in self._asked.values():
            asked.running = asked.running and now < asked.until
        running = sum(asked.running for asked in self._asked.values())
        return self.settings.enabled and now >= self._not_before and running <= member_count // _MEMBERS_A_PROBE

    def next(self, candidates: Sequence[ProbeCandidate], now: float) -> list[SendProbe]:
        """The next probe, if anybody needs one. Candidates are all members that are idle now."""
        self._not_before = now + self.settings.spacing_s
        self._finish(candidates)
        idle = {one.peer_id for one in candidates}
        for peer_id, asked in self._asked.items():
            idle -= {peer_id, asked.to_peer} if asked.running else set()
        for one in sorted(candidates, key=lambda one: one.confidence):
            target = next((to_peer for to_peer in one.targets if to_peer in idle), None)
            if one.wanted and one.peer_id in idle and target is not None and self._is_due(one, now):
                return [self._ask(one.peer_id, target, now)]
        self._not_before = now + _LOOK_AGAIN_S
        return []

    def _is_due(self, one: ProbeCandidate, now: float) -> bool:
        asked = self._asked.get(one.peer_id)
        return one.confidence < _CONFIDENCE_ENOUGH and (asked is None or now >= asked.again_at)

    def _ask(self, peer_id: PeerId, to_peer: PeerId, now: float) -> SendProbe:
        bytes_max = min(self.settings.bytes_max, limits.PROBE_BYTES_MAX)
        before = self._asked.get(peer_id)
        doublings = 0 if before is None else min(before.doublings + 1, _DOUBLINGS_MAX)
        until = now + self.settings.seconds_max + _ANSWER_WITHIN_S
        self._last_id += 1
        self._asked[peer_id] = _Asked(self._last_id, to_peer, until, now + _AGAIN_AFTER_S * 2**doublings, doublings)
        return SendProbe(peer_id, self._last_id, to_peer, bytes_max, self.settings.seconds_max)

    def _finish(self, candidates: Sequence[ProbeCandidate]) -> None:
        for one in candidates:
            asked = self._asked.get(one.peer_id)
            if asked is not None and asked.running and one.done_probe_id == asked.probe_id:
                asked.running, asked.doublings = False, -1

    def left(self, peer_id: PeerId) -> None:
        """This peer is gone; so is its probe."""
        self._asked.pop(peer_id, None)
