"""Test how much a slow link may have in the kernel and in front of its uplink."""

from __future__ import annotations

from collections import deque

import pytest

from rollcast.wire.links.queue_limit import QueueFigures, QueueLimit, UplinkQueue

SEGMENT_BYTES = 1448


class Path:
    """A path with a queue in front of it, whose sender gives it what the limit allows."""

    def __init__(self, bytes_per_second: float, rtt_s: float) -> None:
        self.limit = QueueLimit(UplinkQueue())
        self.now = 0.0
        self.given_bytes = 0
        self.most_queued_bytes = 0.0
        self.idle_s = 0.0
        self.looks = 0
        self._rate = bytes_per_second
        self._rtt_s = rtt_s
        self._free_s = 0.0  # when the queue is empty
        self._acknowledgements: deque[tuple[float, int]] = deque()
        self._acknowledged_bytes = 0

    def look(self) -> QueueFigures:
        self.looks += 1
        while self._acknowledgements and self._acknowledgements[0][0] <= self.now:
            self._acknowledged_bytes += self._acknowledgements.popleft()[1]
        unacknowledged = self.given_bytes - self._acknowledged_bytes
        queued_s = max(0.0, self._free_s - self.now)
        return QueueFigures(unacknowledged, self._rtt_s, self._rtt_s + queued_s, self._rate, SEGMENT_BYTES)

    def send(self, size_bytes: int) -> None:
        """Give a chunk, piece by piece."""
        while size_bytes:
            room = self.limit.room_bytes(size_bytes, self.given_bytes, self.look, self.now)
            if not room:
                self.now += self.limit.pause_s
                continue
            size_bytes -= room
            self._give(room)

    def _give(self, size_bytes: int) -> None:
        self.given_bytes += size_bytes
        if self.given_bytes > size_bytes:
            self.idle_s += max(0.0, self.now - self._free_s)
        self._free_s = max(self.now, self._free_s)
        for start in range(0, size_bytes, SEGMENT_BYTES):
            segment_bytes = min(SEGMENT_BYTES, size_bytes - start)
            self._free_s += segment_bytes / self._rate
            self._acknowledgements.append((self._free_s + self._rtt_s, segment_bytes))
        self.most_queued_bytes = max(self.most_queued_bytes, (self._free_s - self.now) * self._rate)


@pytest.mark.parametrize(("mbit_s", "rtt_s"), [(0.2, 0.08), (0.4, 0.02), (1.2, 0.1), (1.2, 0.2)])
def test_a_slow_uplink_is_kept_busy_with_a_few_packets_in_front_of_it(mbit_s: float, rtt_s: float) -> None:
    path = Path(mbit_s * 125_000, rtt_s)
    path.send(256 << 10)
    first_bytes = path.most_queued_bytes
    assert first_bytes <= 10 * SEGMENT_BYTES, "as TCP begins"
    path.most_queued_bytes = path.idle_s = 0.0
    began_s = path.now
    for _ in range(16):
        path.send(16 << 10)
    assert path.most_queued_bytes < 8 << 10
    assert path.idle_s < 0.05 * (path.now - began_s)
    assert path.looks < 120 * path.now


def test_a_link_that_is_not_slow_is_looked_at_once_a_second() -> None:
    path = Path(1e6, 0.05)
    for _ in range(100):
        path.now += 0.02
        path.send(64 << 10)
    assert path.looks <= 3


def test_a_few_bytes_are_given_whatever_waits_in_front_of_them() -> None:
    path = Path(10_000, 0.05)
    path.send(14_000)
    looks = path.looks
    assert path.limit.room_bytes(200, path.given_bytes, path.look, path.now) == 200
    assert path.looks == looks


def test_without_figures_nothing_is_limited() -> None:
    limit = QueueLimit(UplinkQueue())
    assert limit.room_bytes(1 << 20, 0, QueueFigures, 0.0) == 1 << 20


def test_pieces_fill_packets() -> None:
    limit = QueueLimit(UplinkQueue())
    figures = QueueFigures(0, 0.1, 0.1, 10_000.0, SEGMENT_BYTES)
    assert limit.room_bytes(1 << 20, 0, lambda: figures, 0.0) == 10 * SEGMENT_BYTES - 22, "and the record around them"


def test_what_waits_for_the_other_ends_uplink_does_not_count() -> None:
    """One of two links gets its acknowledgements half a second late, the other at once."""
    uplink, rate = UplinkQueue(), 20_000.0
    near, far = QueueLimit(uplink), QueueLimit(uplink)
    given = {near: 0, far: 0}
    for step in range(1, 11):
        for link, rtt_s in ((near, 0.1), (far, 0.6)):
            unacknowledged = int(rate * rtt_s)
            given[link] = int(rate * 0.4 * step) + unacknowledged  # and so much more is acknowledged each time
            figures = QueueFigures(unacknowledged, 0.1, rtt_s, rate, SEGMENT_BYTES)
            room = link.room_bytes(1 << 20, given[link], lambda figures=figures: figures, 0.4 * step)
            if step > 3:  # both rates are known
                assert room == 4 * SEGMENT_BYTES - 22, "6 KiB beyond what is on its way"


def test_a_link_that_is_late_alone_is_limited_until_another_one_sends() -> None:
    uplink = UplinkQueue()
    first, second = QueueLimit(uplink), QueueLimit(uplink)
    assert uplink.wait_s(first, 0.5, 0.0) == 0.5
    assert uplink.wait_s(second, 0.1, 0.5) == 0.1
    assert uplink.wait_s(first, 0.5, 1.0) == 0.1
    assert uplink.wait_s(first, 0.5, 1.6) == 0.5, "the second one has not sent for a second"
