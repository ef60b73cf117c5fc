"""Limit how often something is done for each member, so that no member takes turns from others. Pure."""

from __future__ import annotations

from collections import OrderedDict

from rollcast.wire.ids import PeerId


class Turns:
    """Limits each member to ``at_once`` turns, then one in ``every_s`` (the leaky bucket of ITU-T I.371, annex A).

    A member's state outlives its sessions, and is discarded once all its turns are free again. Times are of one clock
    in seconds.
    """

    def __init__(self, *, at_once: int, every_s: float) -> None:
        self._every_s = every_s
        self._ahead_most_s = (at_once - 1) * every_s
        self._free_at: OrderedDict[PeerId, float] = OrderedDict()  # the member that asked longest ago first

    def take(self, peer_id: PeerId, now: float) -> bool:
        """Take a turn of this member if it has one now; returns whether it had."""
        self._discard_some(now)
        free_at = max(now, self._free_at.pop(peer_id, now))
        may = free_at - now <= self._ahead_most_s
        self._free_at[peer_id] = free_at + self._every_s if may else free_at
        return may

    def __len__(self) -> int:
        """Return the number of members that are remembered."""
        return len(self._free_at)

    def _discard_some(self, now: float) -> None:
        while self._free_at:
            peer_id, free_at = next(iter(self._free_at.items()))
            if free_at > now:
                return
            del self._free_at[peer_id]
