"""Steer how many chunks one relay or source is given at a time: enough to keep it busy, and hardly more.

As TCP Vegas (Brakmo and Peterson 1995) steers a congestion window by the delay above the smallest seen, this steers the
number of chunks that another process holds for this one by its service time: from sending a chunk to the report
that it is done. The smallest service time is that of an idle process; the rest is time spent waiting in its queue.
"""

from __future__ import annotations

# Chunks that should wait in the other end's queue: with fewer it may run idle, more only add delay.
_WAITING_LEAST = 1.0
_WAITING_MOST = 3.0
_STEP = 0.5
_USED_SHARE = 0.75
_SMALLEST = 1.0
_LARGEST = 4096.0
# Routes and machines change between versions, so the smallest service time grows by this factor with each of them. It
# does not while chunks flow: with a queue that is never empty it would creep up, and the window with it.
_BASE_GROWTH = 1.25
_SMOOTHING = 0.2
_PACE_SMOOTHING = 0.1
# Chunks that take this many times as long as usual count for more: the uplink may have become slow, and would be given
# chunks for many links until that is learned, behind which its own requests and reports wait.
_SLOWER_TIMES = 2.0
_SLOWER_SMOOTHING = 0.5
# A chunk that takes longer counts as this many times as long as usual.
_TRANSIT_TIMES_MOST = 5.0
# A chunk is late after this many smoothed service times.
_LATE_SERVICES = 4.0


class ServiceWindow:
    """The window of one relay or source, for chunks of one size.

    Args:
        first: its size in chunks before anything is observed.
        least: its smallest size.
    """

    __slots__ = ("_base_s", "_growing_fast", "_least", "chunks", "late_after_s", "service_s", "size")

    def __init__(self, first: float, least: float = _SMALLEST) -> None:
        self._least = least
        self.size = first
        self.chunks = int(first)  # that the other end may have now
        self.service_s = 0.0  # smoothed; 0 before the first answer
        self.late_after_s = 0.0  # a chunk that takes longer than this is not merely queued
        self._base_s = float("inf")
        self._growing_fast = True

    @property
    def answered(self) -> bool:
        """Return whether anything was observed: some relays report nothing."""
        return self._base_s < float("inf")

    def begin(self) -> None:
        """A new version begins: its first chunks find an idle process and show the service time of today's route."""
        self._base_s *= _BASE_GROWTH

    def observe(self, service_s: float, held: int) -> None:
        """Learn from a chunk that is done.

        Args:
            service_s: seconds since it was sent.
            held: chunks that the other end had then, this one included: a window that is not used does not grow.
        """
        service_s = max(service_s, 1e-6)
        self._base_s = min(self._base_s, service_s)
        self._set_service(self.service_s + (_SMOOTHING if self.service_s else 1.0) * (service_s - self.service_s))
        waiting = self.size * (1.0 - self._base_s / service_s)
        if waiting > _WAITING_MOST:
            self._growing_fast = False
            self._set_size(self.size - _STEP)
        elif waiting < _WAITING_LEAST and held >= self.chunks * _USED_SHARE:
            self._set_size(self.size + (1.0 if self._growing_fast else _STEP))

    def late(self, held_s: float) -> None:
        """Begin again with the least size, as TCP does after a timeout: one was not done within ``held_s`` seconds."""
        if not self.service_s:
            self._set_service(held_s / _LATE_SERVICES)  # the same patience the next time
        self._set_size(self._least)
        self._growing_fast = False

    def _set_service(self, service_s: float) -> None:
        self.service_s = service_s
        self.late_after_s = _LATE_SERVICES * service_s

    def _set_size(self, size: float) -> None:
        self.size = min(_LARGEST, max(self._least, size))
        self.chunks = int(self.size)


class UplinkPace:
    """Measures how long this process's uplink takes for a chunk while it has some to send.

    Both times are those of a chunk of the size that was given last: a keyframe has larger ones than a delta.

    Attributes:
        chunk_s: smoothed seconds for one chunk, to whichever link; 0 before the first has left.
        transit_s: smoothed seconds from giving a chunk to a link until it has left, while others share the uplink;
            0 before the first has left.
    """

    __slots__ = ("_chunk_bytes", "_since_s", "chunk_s", "transit_s")

    def __init__(self) -> None:
        self.chunk_s = 0.0
        self.transit_s = 0.0
        self._chunk_bytes = 0  # 0 before the first is given
        self._since_s = 0.0  # when the last chunk left, or the first one was given to an idle uplink

    def begins(self, now: float) -> None:
        """An idle uplink is given a chunk."""
        self._since_s = now

    def given(self, size_bytes: int) -> None:
        """A chunk of this size is given to a link."""
        if size_bytes != self._chunk_bytes:
            if self._chunk_bytes:
                self.chunk_s *= size_bytes / self._chunk_bytes
                self.transit_s *= size_bytes / self._chunk_bytes
            self._chunk_bytes = size_bytes

    def chunk_s_at_least(self, given_at_s: float, now: float) -> float:
        """Return how long a chunk takes now: as before, or longer if none has left for longer.

        Args:
            given_at_s: when a chunk that has not left was given to the uplink.
        """
        return max(self.chunk_s, now - max(self._since_s, given_at_s))

    def left(self, size_bytes: int, given_at_s: float, now: float) -> None:
        """A chunk left.

        Args:
            size_bytes: its size.
            given_at_s: when it was given to its link.
        """
        scale = self._chunk_bytes / size_bytes
        took_s, self._since_s = (now - self._since_s) * scale, now
        transit_s = (now - given_at_s) * scale
        if not self.chunk_s:
            self.chunk_s, self.transit_s = took_s, transit_s
            return
        slower = took_s > _SLOWER_TIMES * self.chunk_s
        self.chunk_s += (_SLOWER_SMOOTHING if slower else _PACE_SMOOTHING) * (took_s - self.chunk_s)
        # One that waited for a link's other end for long says little about the uplink.
        transit_s = min(transit_s, _TRANSIT_TIMES_MOST * self.transit_s)
        self.transit_s += _SMOOTHING * (transit_s - self.transit_s)
