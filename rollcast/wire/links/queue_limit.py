"""Limit what a slow link has in the kernel and in the queue of its uplink. Pure: figures and time are given.

TCP does not: the kernel takes a buffer of up to 64 KiB whole, and sends ten packets of it at once. A relay with a dozen
children on an uplink of a megabit per second would fill the queue in front of it with packets for all of them, and lose
one in ten. So a slow link is given a chunk piece by piece: no more is unacknowledged than it delivers while a packet
and its acknowledgement are on their way (as in BBR; Cardwell et al. 2016) and a few packets besides, which wait in
front of the uplink so that it is never idle. A chunk has left once its last piece is given.

Round trips are long for two reasons: packets wait in the queue of this uplink, or acknowledgements wait in that of the
other end's. Only the first wait is to be short. It makes all links late alike, so no more than the least by which one
of them is late is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_QUEUED_BYTES_MOST = 6 << 10
# Before anything is known of a link: TCP's initial window (RFC 6928).
_SEGMENTS_FIRST = 10
_SEGMENTS_LEAST = 2  # are given at a time
_RECORD_BYTES = 22  # of TLS, around each piece
# So few bytes are given whatever waits.
_SMALL_BYTES = 1 << 10
# A faster link sends a chunk of 16 KiB within a tenth of a second: it is not limited, and not looked at for a while.
_LIMITED_BYTES_PER_SECOND_MOST = 160 << 10
_LIMITED_AGAIN_S = 1.0
_LOOK_S_LEAST = 0.01
_LOOK_S_MOST = 0.05
# The rate is the largest of the last measurements, of so long or a round trip at least: a link that shares its uplink
# becomes faster and slower with the others.
_MEASURED_S_LEAST = 0.1
_KEPT_SHARE = 0.8
# A link that was not looked at for so long, or for two round trips, had nothing to send.
_IDLE_S = 0.5
# How late a link is counts for so long.
_LATE_COUNTS_S = 1.0


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The kernel's figures of what a connection has to send.

    Args:
        unacknowledged_bytes: taken by the kernel and not acknowledged, unsent ones included.
        least_rtt_s: the shortest round trip of the last minutes, in seconds; 0 if it is not known.
        rtt_s: the smoothed round trip, in seconds; 0 if it is not known.
        bytes_per_second: rate at which bytes were delivered lately; 0 if it is not known.
        segment_bytes: bytes that a full packet carries; 0 if the system has no such figures.
    """

    unacknowledged_bytes: int = 0
    least_rtt_s: float = 0.0
    rtt_s: float = 0.0
    bytes_per_second: float = 0.0
    segment_bytes: int = 0

    @property
    def late_s(self) -> float:
        """Return by how much round trips exceed the shortest one."""
        return max(0.0, self.rtt_s - self.least_rtt_s)


class UplinkQueue:
    """Estimates how long packets wait in the queue of the uplink that slow links share."""

    def __init__(self) -> None:
        self._late: dict[QueueLimit, tuple[float, float]] = {}  # by how much a link is late, and when that was

    def wait_s(self, link: QueueLimit, late_s: float, now: float) -> float:
        """Note by how much a link is late, and return the least by which one of those that send is."""
        self._late[link] = late_s, now
        for old in [one for one, (_, at_s) in self._late.items() if now - at_s > _LATE_COUNTS_S]:
            del self._late[old]
        return min(late_s for late_s, _ in self._late.values())


class QueueLimit:
    """The limit of one link."""

    def __init__(self, uplink: UplinkQueue) -> None:
        self._uplink = uplink
        self._unlimited_until_s = 0.0
        self._rate = 0.0  # bytes delivered per second; 0: not known
        self._seen = (float("-inf"), 0)  # when the measurement began, and the bytes acknowledged by then
        self.pause_s = 0.0
        """Seconds after which to ask again if there was no room."""

    def room_bytes(self, waiting_bytes: int, given_bytes: int, look: Callable[[], QueueFigures], now: float) -> int:
        """Return how many of the bytes that wait in this process may be given to the kernel.

        Args:
            given_bytes: bytes given to the kernel so far.
        """
        if waiting_bytes <= _SMALL_BYTES or now < self._unlimited_until_s:
            return waiting_bytes
        figures = look()
        if not figures.segment_bytes or figures.bytes_per_second > _LIMITED_BYTES_PER_SECOND_MOST:
            self._unlimited_until_s = now + _LIMITED_AGAIN_S
            return waiting_bytes
        self._measure(given_bytes - figures.unacknowledged_bytes, figures.rtt_s, now)
        return self._room(waiting_bytes, figures, self._uplink.wait_s(self, figures.late_s, now))

    def _measure(self, acknowledged_bytes: int, rtt_s: float, now: float) -> None:
        since_s, before_bytes = self._seen
        took_s = now - since_s
        if took_s > max(_IDLE_S, 2 * rtt_s):
            self._seen = now, acknowledged_bytes
        elif took_s >= max(_MEASURED_S_LEAST, rtt_s):
            self._rate = max(_KEPT_SHARE * self._rate, (acknowledged_bytes - before_bytes) / took_s)
            self._seen = now, acknowledged_bytes

    def _room(self, waiting_bytes: int, figures: QueueFigures, queue_s: float) -> int:
        segment_bytes = figures.segment_bytes
        most_bytes = float(_SEGMENTS_FIRST * segment_bytes)
        if self._rate:
            most_bytes = _QUEUED_BYTES_MOST + self._rate * (figures.least_rtt_s + figures.late_s - queue_s)
        room_bytes = most_bytes - figures.unacknowledged_bytes
        segments = int(room_bytes // segment_bytes)
        if segments >= _SEGMENTS_LEAST:
            return min(waiting_bytes, segments * segment_bytes - _RECORD_BYTES)
        lacking_bytes = _SEGMENTS_LEAST * segment_bytes - room_bytes
        expected_s = lacking_bytes / self._rate if self._rate else 0.0
        self.pause_s = min(_LOOK_S_MOST, max(_LOOK_S_LEAST, expected_s))
        return 0
