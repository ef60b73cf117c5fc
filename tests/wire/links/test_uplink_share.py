"""Test that the links of a process share its uplink evenly, as fast as it carries and with a short queue."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from rollcast.wire.links.uplink_share import UNLIMITED, SentFigures, UplinkShare

TICK_S = 0.01
QUEUE_S_MOST = 0.05  # of the emulated uplink
MEGABYTE = 1_000_000.0


class Link:
    """A connection that always has bytes to send while it is busy, and sends them as fast as it may."""

    def __init__(self, weight: float) -> None:
        self.weight = weight  # of its own congestion control, where nothing is limited
        self.busy = True
        self.paced = UNLIMITED
        self.acknowledged = 0.0
        self.late_s = 0.0

    def sent_figures(self) -> SentFigures | None:
        return SentFigures(int(self.acknowledged), self.late_s)

    def pace(self, bytes_per_second: int) -> None:
        self.paced = bytes_per_second


class Uplink:
    """An uplink with a queue, in fluid approximation."""

    def __init__(self, bytes_per_second: float, weights: Sequence[float]) -> None:
        self.rate = bytes_per_second
        self.links = [Link(weight) for weight in weights]
        self.share = UplinkShare()
        self.foreign_s = 0.0  # by which all are late for another reason
        self.queue_bytes = 0.0
        self.now = 100.0

    def run(self, seconds: float) -> tuple[list[float], float]:
        """Return the bytes per second that each link carried, and the mean wait in the queue."""
        before = [link.acknowledged for link in self.links]
        ticks = round(seconds / TICK_S)
        waited_s = 0.0
        for number in range(ticks):
            self._tick(number)
            waited_s += self.queue_bytes / self.rate
        rates = [(link.acknowledged - start) / seconds for link, start in zip(self.links, before, strict=True)]
        return rates, waited_s / ticks

    def _tick(self, number: int) -> None:
        self.now += TICK_S
        busy = [link for link in self.links if link.busy]
        weight = sum(link.weight for link in busy)
        wanted = {
            link: link.paced if link.paced < UNLIMITED else 1.2 * self.rate * link.weight / weight for link in busy
        }
        offered = sum(wanted.values()) * TICK_S
        room = self.rate * (TICK_S + QUEUE_S_MOST) - self.queue_bytes
        self.queue_bytes = max(0.0, self.queue_bytes + min(offered, room) - self.rate * TICK_S)
        for link in self.links:
            link.late_s = self.foreign_s + self.queue_bytes / self.rate
            if link in wanted:
                link.acknowledged += wanted[link] * TICK_S * min(1.0, self.rate * TICK_S / offered)
            # Between two chunks nothing waits for a moment, of one link after the other.
            self.share.waits(link, link.busy and self.links[number % len(self.links)] is not link, self.now)


def test_links_with_long_round_trips_get_as_much_as_the_others() -> None:
    uplink = Uplink(3 * MEGABYTE, (4.0, 4.0, 3.0, 2.0, 1.0))
    first, _ = uplink.run(0.5)
    assert min(first) < 0.4 * max(first), "nothing is limited before the uplink is known"
    uplink.run(5.0)
    rates, waited_s = uplink.run(20.0)
    assert min(rates) > 0.9 * max(rates)
    assert sum(rates) > 0.93 * uplink.rate
    assert waited_s < 0.6 * QUEUE_S_MOST


def test_a_link_with_nothing_to_send_leaves_its_part_to_the_others() -> None:
    uplink = Uplink(3 * MEGABYTE, (1.0,) * 6)
    uplink.run(10.0)
    for link in uplink.links[2:]:
        link.busy = False
    rates, _ = uplink.run(10.0)
    assert rates[2:] == pytest.approx([0.0] * 4)
    assert sum(rates) > 0.9 * uplink.rate


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0])
def test_the_total_follows_an_uplink_that_changes(factor: float) -> None:
    uplink = Uplink(3 * MEGABYTE, (4.0, 2.0, 1.0))
    uplink.run(10.0)
    uplink.rate *= factor
    uplink.run(10.0)
    rates, _ = uplink.run(10.0)
    assert sum(rates) > 0.9 * uplink.rate
    assert min(rates) > 0.8 * max(rates)


def test_a_queue_of_others_does_not_slow_this_process_down() -> None:
    uplink = Uplink(3 * MEGABYTE, (1.0,) * 4)
    uplink.run(5.0)
    uplink.foreign_s = 0.08
    uplink.run(10.0)
    rates, _ = uplink.run(20.0)
    assert [link.paced for link in uplink.links] == [UNLIMITED] * 4
    assert sum(rates) > 0.95 * uplink.rate
    uplink.foreign_s = 0.0
    uplink.run(30.0)
    assert all(link.paced < UNLIMITED for link in uplink.links), "it is tried again"


def test_without_a_queue_a_limit_that_is_too_low_does_not_last() -> None:
    uplink = Uplink(0.1 * MEGABYTE, (1.0,) * 4)
    uplink.run(10.0)
    uplink.rate = 5 * MEGABYTE
    for _ in range(100):  # never enough to send for a rate to be measured
        for link in uplink.links:
            link.busy = True
        uplink.run(0.15)
        for link in uplink.links:
            link.busy = False
        uplink.run(0.15)
    assert min(link.paced for link in uplink.links) > 0.25 * MEGABYTE


def test_a_link_that_ends_is_forgotten() -> None:
    uplink = Uplink(3 * MEGABYTE, (1.0, 1.0, 1.0))
    uplink.run(10.0)
    ended = uplink.links.pop()
    uplink.share.remove(ended, uplink.now)
    before = ended.paced
    rates, _ = uplink.run(10.0)
    assert ended.paced == before
    assert sum(rates) > 0.9 * uplink.rate


def test_links_whose_figures_are_unknown_are_not_limited() -> None:
    class Silent(Link):
        def sent_figures(self) -> SentFigures | None:
            return None

    share, links = UplinkShare(), [Silent(1.0), Silent(1.0)]
    for number, link in itertools.product(range(200), links):
        share.waits(link, number % 2 == 0, number * 0.05)
    assert [link.paced for link in links] == [UNLIMITED] * 2


def test_a_link_that_sends_alone_is_not_limited() -> None:
    uplink = Uplink(3 * MEGABYTE, (1.0, 1.0))
    other = uplink.links[1]
    other.busy = False
    uplink.run(10.0)
    assert uplink.links[0].paced == UNLIMITED
    other.busy = True
    uplink.run(5.0)
    assert all(link.paced < 2 * MEGABYTE for link in uplink.links)
    other.busy = False
    uplink.run(5.0)
    assert uplink.links[0].paced < UNLIMITED, "the other link may go on at any moment"
    uplink.run(30.0)
    assert uplink.links[0].paced == UNLIMITED
