"""Estimates of what a process can send and receive, from its own traffic. Pure: the time is handed in.

How fast one link is, from its own traffic. Pure: the time is handed in.

A cap on a rate: a token bucket that may go into debt. Pure: the time is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass

# Seconds of waiting after which a measurement counts half.
_HALF_LIFE_S = 10.0
# The fastest second counts for one to two of these.
_EPOCH_S = 300.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A rate and how far it can be trusted.

    Args:
        bytes_per_second: 0 where nothing was measured.
        measured_s: seconds behind the figure, older ones counting less.
        age_s: since it was last measured.
    """

    bytes_per_second: float = 0.0
    measured_s: float = 0.0
    age_s: float = 0.0


class RateMeter:
    """Watches the traffic of all links together.

    The uplink is what leaves while something waits to leave: then the network is the limit, not us. What leaves while
    nothing waits says nothing and is not counted.
    """

    def __init__(self) -> None:
        self._busy_since_s: float | None = None
        self._measured_until_s = 0.0
        self._pending_bytes = 0  # left since the measurement was last brought up to date
        self._bytes = 0.0
        self._seconds = 0.0
        self._second_began_s = float("-inf")
        self._second_bytes = 0
        self._epoch_began_s = float("-inf")
        self._fastest = (0, 0)  # bytes in a second: of the last epoch, of this one
        self.sent_bytes = 0
        """All that left."""
        self.received_bytes = 0
        """All that came."""

    def busy(self, waiting: bool, now: float) -> None:
        """Whether anything waits to leave, from ``now`` on."""
        if waiting == (self._busy_since_s is not None):
            return
        if waiting:
            self._busy_since_s = now
            self._pending_bytes = 0
        else:
            self._account(now)
            self._busy_since_s = None

    def sent(self, size_bytes: int, now: float) -> None:
        """So many bytes left this process."""
        self.sent_bytes += size_bytes
        if self._busy_since_s is not None:
            self._pending_bytes += size_bytes

    def received(self, size_bytes: int, now: float) -> None:
        """So many bytes came."""
        self.received_bytes += size_bytes
        if now >= self._second_began_s + 1.0:
            if now >= self._epoch_began_s + _EPOCH_S:
                missed = now >= self._epoch_began_s + 2 * _EPOCH_S
                self._fastest = (0 if missed else self._fastest[1], 0)
                self._epoch_began_s = now
            self._second_began_s = now
            self._second_bytes = 0
        self._second_bytes += size_bytes
        self._fastest = (self._fastest[0], max(self._fastest[1], self._second_bytes))

    def uplink(self, now: float) -> Measured:
        """The estimate of the uplink."""
        self._account(now)
        if not self._seconds:
            return Measured()
        return Measured(self._bytes / self._seconds, self._seconds, now - self._measured_until_s)

    @property
    def downlink_bytes_per_second(self) -> float:
        """The fastest second of receiving within the last minutes: a lower bound; 0 where nothing was received."""
        return float(max(self._fastest))

    def _account(self, now: float) -> None:
        if self._busy_since_s is None or now <= self._busy_since_s:
            return
        seconds = now - self._busy_since_s
        kept = 0.5 ** (seconds / _HALF_LIFE_S)
        self._bytes = self._bytes * kept + self._pending_bytes
        self._seconds = self._seconds * kept + seconds
        self._busy_since_s = self._measured_until_s = now
        self._pending_bytes = 0


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


class TokenBucket:
    """Lets bytes pass at a rate on average.

    Whatever is taken is granted at once and may leave a debt; the next one waits until that is paid. So a chunk larger
    than the burst still passes, and nobody who waits is overtaken.

    Args:
        bytes_per_second: the cap.
        burst_bytes: what may pass at once after a pause.
    """

    def __init__(self, bytes_per_second: float, burst_bytes: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._burst_bytes = burst_bytes
        self._balance_bytes = burst_bytes
        self._updated_s: float | None = None

    def take(self, size_bytes: int, now: float) -> float:
        """Take ``size_bytes``; the seconds that they have to wait for what was taken before."""
        if self._updated_s is not None:
            earned = (now - self._updated_s) * self.bytes_per_second
            self._balance_bytes = min(self._burst_bytes, self._balance_bytes + earned)
        self._updated_s = now
        wait_s = max(0.0, -self._balance_bytes / self.bytes_per_second)
        self._balance_bytes -= size_bytes
        return wait_s
