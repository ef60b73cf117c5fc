"""Limit how often something is done for each member, so that no member takes turns from others. Pure."""

from __future__ import annotations

from collections import OrderedDict

from rollcast.wire.ids import PeerId


class Turns:
    """So many at once, and one every so many seconds on average (the leaky bucket of ITU-T I.371, annex A).

    What is kept does not end with a session, and is forgotten once it says nothing any more. Times are of one clock in
    seconds.
    """

    def __init__(self, *, at_once: int, every_s: float) -> None:
        self._every_s = every_s
        self._ahead_most_s = (at_once - 1) * every_s
        self._free_at: OrderedDict[PeerId, float] = OrderedDict()  # longest not asked first

    def take(self, peer_id: PeerId, now: float) -> bool:
        """Take a turn of this member if it has one now; returns whether it had."""
        self._forget_some(now)
        free_at = max(now, self._free_at.pop(peer_id, now))
        may = free_at - now <= self._ahead_most_s
        self._free_at[peer_id] = free_at + self._every_s if may else free_at
        return may

    def __len__(self) -> int:
        """Return the number of members that are remembered."""
        return len(self._free_at)

    def _forget_some(self, now: float) -> None:
        while self._free_at:
            peer_id, free_at = next(iter(self._free_at.items()))
            if free_at > now:
                return
            del self._free_at[peer_id]
