"""When a better way is tried to a peer that is linked by a worse one. Decisions only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rollcast.wire.ids import PeerId

_FIRST_S = 30.0
_MOST_S = 1800.0


@dataclass(slots=True)
class _Waiting:
    addresses: tuple[str, ...]
    try_at_s: float
    tries: int = 0


@dataclass(slots=True)
class PathUpgrades:
    """The peers whose link could be better. Each waits 30 s for its first try, and after each that failed twice as long
    as before, up to half an hour."""

    _waiting: dict[PeerId, _Waiting] = field(default_factory=dict)

    def look(self, better: Iterable[tuple[PeerId, tuple[str, ...]]], jitter: float, now: float) -> None:
        """Who is linked by which ways that could be better.

        Args:
            better: those peers, each with the addresses to try; all others are forgotten.
            jitter: between 0 and 1.
        """
        known, self._waiting = self._waiting, {}
        for peer_id, addresses in better:
            before = known.get(peer_id)
            if before is not None and set(addresses) <= set(before.addresses):
                before.addresses = addresses
                self._waiting[peer_id] = before
            else:  # a way that was not there before has not failed yet
                self._waiting[peer_id] = _Waiting(addresses, now + _wait_s(0, jitter))

    def due(self, now: float) -> tuple[PeerId, tuple[str, ...]] | None:
        """Whose addresses are to be tried now, the one that waits for longest; ``failed`` or another look follows."""
        waiting = [(one.try_at_s, peer_id, one.addresses) for peer_id, one in self._waiting.items()]
        try_at_s, peer_id, addresses = min(waiting, default=(float("inf"), PeerId(""), ()))
        return (peer_id, addresses) if try_at_s <= now else None

    def failed(self, peer_id: PeerId, jitter: float, now: float) -> None:
        """None of them answered."""
        waiting = self._waiting.get(peer_id)
        if waiting is not None:
            waiting.tries += 1
            waiting.try_at_s = now + _wait_s(waiting.tries, jitter)

    def opened(self, peer_id: PeerId) -> None:
        """There is a better link."""
        self._waiting.pop(peer_id, None)


def _wait_s(tries: int, jitter: float) -> float:
    """Between half of the ceiling and all of it."""
    return min(_MOST_S, _FIRST_S * 2.0 ** min(tries, 16)) * (0.5 + 0.5 * jitter)
