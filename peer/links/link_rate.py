"""How fast one link is, from its own traffic. Pure: the time is handed in."""

from __future__ import annotations

from peer.links.rates import RateMeter

# A stretch of receiving that lasts so long, with no longer gap than this in it, was as fast as the link: what comes in
# small pieces now and then says nothing.
_STRETCH_S = 1.0
_GAP_S = 0.25
# So long something must have waited to leave before what left says how fast the link is.
_SENT_S_LEAST = 0.5


class LinkRate:
    """Watches one link; both figures are of busy times only."""

    def __init__(self) -> None:
        self._sending = RateMeter()
        self._stretch_began_s = self._came_at_s = float("-inf")
        self._stretch_bytes = 0
        self.received_bytes_per_second = 0.0
        """Of the last stretch in which bytes kept coming; 0: there was none."""

    def waits(self, waiting: bool, now: float) -> None:
        """Whether anything waits to leave, from ``now`` on."""
        self._sending.busy(waiting, now)

    def sent(self, size_bytes: int, now: float) -> None:
        """So many bytes left."""
        self._sending.sent(size_bytes, now)

    def received(self, size_bytes: int, now: float) -> None:
        """So many bytes came."""
        if now - self._came_at_s > _GAP_S:
            self._stretch_began_s, self._stretch_bytes = now, 0
        else:
            self._stretch_bytes += size_bytes
        self._came_at_s = now
        if now - self._stretch_began_s >= _STRETCH_S:
            self.received_bytes_per_second = self._stretch_bytes / (now - self._stretch_began_s)
            self._stretch_began_s, self._stretch_bytes = now, 0

    def sent_bytes_per_second(self, now: float) -> float:
        """While something waited to leave; 0: too little of that."""
        measured = self._sending.uplink(now)
        return measured.bytes_per_second if measured.measured_s >= _SENT_S_LEAST else 0.0
