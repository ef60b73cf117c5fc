"""Estimate rates from traffic that passes anyway. Pure: the time is an argument.

``RateMeter`` estimates the uplink and downlink of a process, ``DeliveredRate`` an uplink by what arrived, ``LinkRate``
the rates of one link.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# Seconds of waiting after which a measurement counts half.
_HALF_LIFE_S = 10.0
# The fastest second counts for one to two of these.
_EPOCH_S = 300.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A rate and how far it can be trusted.

    Args:
        bytes_per_second: 0 if nothing was measured.
        measured_s: seconds of traffic behind the figure; older ones count less.
        age_s: seconds since the rate was last measured.
    """

    bytes_per_second: float = 0.0
    measured_s: float = 0.0
    age_s: float = 0.0


class RateMeter:
    """Measures the traffic of all links together.

    The uplink is the rate at which bytes leave while more of them wait: then the network is the limit and not this
    process. Bytes that leave while none wait do not show how fast the uplink is and are not counted.
    """

    def __init__(self) -> None:
        self._busy_since_s: float | None = None
        self._measured_until_s = 0.0
        self._pending_bytes = 0  # that left since the measurement was last brought up to date
        self._bytes = 0.0
        self._seconds = 0.0
        self._second_began_s = float("-inf")
        self._second_bytes = 0
        self._epoch_began_s = float("-inf")
        self._fastest = (0, 0)  # bytes in the fastest second of the last epoch, and of this one
        self.sent_bytes = 0
        """Bytes sent since the process started."""
        self.received_bytes = 0
        """Bytes received since the process started."""

    def busy(self, waiting: bool, now: float) -> None:
        """Note whether any bytes wait to leave from ``now`` on."""
        if waiting == (self._busy_since_s is not None):
            return
        if waiting:
            self._busy_since_s = now
            self._pending_bytes = 0
        else:
            self._account(now)
            self._busy_since_s = None

    def sent(self, size_bytes: int, now: float) -> None:
        """Count bytes that left this process."""
        self.sent_bytes += size_bytes
        if self._busy_since_s is not None:
            self._pending_bytes += size_bytes

    def received(self, size_bytes: int, now: float) -> None:
        """Count bytes that this process received."""
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
        """Return the estimate of the uplink; all zeros if it was never busy."""
        self._account(now)
        if not self._seconds:
            return Measured()
        return Measured(self._bytes / self._seconds, self._seconds, now - self._measured_until_s)

    @property
    def downlink_bytes_per_second(self) -> float:
        """Return the bytes of the fastest second of the last minutes: a lower bound; 0 if nothing was received."""
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


# What the other ends acknowledged is counted this often, while bytes wait to leave.
_DELIVERED_EVERY_S = 2.0
# It shows how fast the uplink is if bytes waited for this share of the time: less than all of it, because a link has
# nothing to send for a moment between two chunks.
_WAITED_SHARE_LEAST = 0.9
# Acknowledgements come in bursts, so the rate is the mean of the last ones.
_DELIVERED_COUNTED = 6


class DeliveredRate:
    """Measures an uplink by the bytes that the other ends acknowledge while more of them wait.

    For ``RateMeter``, bytes have left once the kernel has taken them. But the kernel and the queue in front of a slow
    uplink take seconds of it at once, so that it would seem up to twice as fast as it is.
    """

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=_DELIVERED_COUNTED)
        self._waiting_since_s: float | None = None
        self._began_s = float("-inf")
        self._waited_s = 0.0

    @property
    def bytes_per_second(self) -> float:
        """Return the rate; 0 if bytes never waited for long enough."""
        return sum(self._rates) / len(self._rates) if self._rates else 0.0

    def busy(self, waiting: bool, now: float) -> None:
        """Note whether any bytes wait to leave from ``now`` on."""
        if self._waiting_since_s is not None:
            self._waited_s += now - self._waiting_since_s
        self._waiting_since_s = now if waiting else None

    def due(self, now: float) -> bool:
        """Return whether it is time for ``delivered``."""
        return now - self._began_s >= _DELIVERED_EVERY_S

    def delivered(self, size_bytes: int | None, now: float) -> None:
        """Learn how many bytes were acknowledged since the last call; None if that is not known."""
        self.busy(self._waiting_since_s is not None, now)
        if size_bytes is not None and self._waited_s >= _WAITED_SHARE_LEAST * (now - self._began_s):
            self._rates.append(size_bytes / (now - self._began_s))
        self._began_s, self._waited_s = now, 0.0


# Receiving for a stretch of _STRETCH_S without a gap longer than _GAP_S was as fast as the link is; a few bytes now and
# then do not show how fast it is.
_STRETCH_S = 1.0
_GAP_S = 0.25
# Bytes must have waited to leave for this long before the rate of those that left is taken for the link's.
_SENT_S_LEAST = 0.5


# A link is judged each time that bytes have waited for it this long.
_JUDGED_EVERY_S = 1.0
SLOW_SHARE = 0.1
"""The share of its fastest rate at which a link is slow."""


class Slowdown:
    """Notices within two seconds of sending that a link carries less than a tenth of what it carried before.

    Only time in which bytes waited counts. Links that share the uplink are not slow: a link's share counts once for
    each of the links that wait.
    """

    def __init__(self) -> None:
        self._fastest = 0.0
        self._largest_bytes = 0
        self._busy_since_s: float | None = None
        self._busy_s = 0.0
        self._bytes = 0
        self.slow = False
        """Whether the link was slow when it was judged last."""

    def waits(self, waiting: bool, now: float) -> None:
        """Note whether any bytes wait to leave from ``now`` on."""
        self._count_time(now)
        self._busy_since_s = now if waiting else None

    def sent(self, size_bytes: int) -> None:
        """Count a piece that left while bytes waited."""
        self._largest_bytes = max(self._largest_bytes, size_bytes)
        if self._busy_since_s is not None:
            self._bytes += size_bytes

    def judge(self, waiting_links: int, now: float) -> None:
        """Judge the link if bytes have waited for long enough since the last time.

        Args:
            waiting_links: links that share the uplink and have bytes that wait, this one included.
        """
        self._count_time(now)
        # At a tenth of the fastest rate, the largest piece would have left by then.
        enough_s = self._largest_bytes / (SLOW_SHARE * self._fastest) if self._fastest else 0.0
        if self._busy_s < max(_JUDGED_EVERY_S, enough_s):
            return
        rate = self._bytes / self._busy_s
        self.slow = rate * max(1, waiting_links) < SLOW_SHARE * self._fastest
        self._fastest = max(self._fastest, rate)
        self._busy_s, self._bytes = 0.0, 0

    def _count_time(self, now: float) -> None:
        if self._busy_since_s is not None:
            self._busy_s += now - self._busy_since_s
            self._busy_since_s = now


class LinkRate:
    """Measures one link; both rates count only times in which it was busy."""

    def __init__(self) -> None:
        self._sending = RateMeter()
        self._slowdown = Slowdown()
        self._stretch_began_s = self._came_at_s = float("-inf")
        self._stretch_bytes = 0
        self.received_bytes_per_second = 0.0
        """The rate of the last stretch in which bytes kept coming; 0 if there was none."""

    def waits(self, waiting: bool, now: float) -> None:
        """Note whether any bytes wait to leave from ``now`` on."""
        self._sending.busy(waiting, now)
        self._slowdown.waits(waiting, now)

    def sent(self, size_bytes: int, now: float) -> None:
        """Count bytes that left on the link."""
        self._sending.sent(size_bytes, now)
        self._slowdown.sent(size_bytes)

    def slow(self, waiting_links: int, now: float) -> bool:
        """Return whether the link is far slower than before; see ``Slowdown``."""
        self._slowdown.judge(waiting_links, now)
        return self._slowdown.slow

    def received(self, size_bytes: int, now: float) -> None:
        """Count bytes that came on the link."""
        if now - self._came_at_s > _GAP_S:
            self._stretch_began_s, self._stretch_bytes = now, 0
        else:
            self._stretch_bytes += size_bytes
        self._came_at_s = now
        if now - self._stretch_began_s >= _STRETCH_S:
            self.received_bytes_per_second = self._stretch_bytes / (now - self._stretch_began_s)
            self._stretch_began_s, self._stretch_bytes = now, 0

    def sent_bytes_per_second(self, now: float) -> float:
        """Return the rate at which bytes left while more waited; 0 if they waited for too short a time."""
        measured = self._sending.uplink(now)
        return measured.bytes_per_second if measured.measured_s >= _SENT_S_LEAST else 0.0
