"""Test rates and traffic of links: measured, summed, and capped by a token bucket."""

from __future__ import annotations

import pytest

from peer.config import LinkConfig
from peer.links.rates import DeliveredRate, LinkRate, Measured, RateMeter, Slowdown
from peer.links.traffic import LinkTraffic, is_lan_address


def test_only_bytes_that_leave_while_others_wait_count() -> None:
    meter = RateMeter()
    meter.sent(1_000_000, 0.0)
    assert meter.uplink(1.0) == Measured()
    meter.busy(True, 1.0)
    meter.sent(1000, 1.5)
    meter.sent(1000, 3.0)
    meter.busy(False, 3.0)
    meter.sent(1_000_000, 3.5)
    assert meter.uplink(7.0) == Measured(1000.0, 2.0, 4.0)


def test_a_slow_uplink_is_measured_by_what_arrives_while_bytes_wait() -> None:
    rate = DeliveredRate()
    assert rate.due(0.0)
    rate.delivered(500_000, 0.0)
    rate.busy(True, 0.0)
    assert not rate.due(1.9)
    rate.busy(False, 1.9)
    rate.busy(True, 2.0)
    assert rate.bytes_per_second == 0.0
    rate.delivered(50_000, 2.0)
    assert rate.bytes_per_second == 25_000.0, "bytes waited for 95 % of the time"
    rate.delivered(None, 4.0)
    rate.busy(False, 5.0)
    rate.delivered(1_000_000, 6.0)
    assert rate.bytes_per_second == 25_000.0, "it is not known, or bytes waited for half of the time"


def test_the_rate_of_what_arrives_is_the_mean_of_the_last_times() -> None:
    rate = DeliveredRate()
    rate.delivered(0, 0.0)
    rate.busy(True, 0.0)
    for number in range(1, 10):
        rate.delivered(20_000 * number, 2.0 * number)
    assert rate.bytes_per_second == pytest.approx(10_000.0 * sum(range(4, 10)) / 6)


def test_a_measurement_under_way_is_current() -> None:
    meter = RateMeter()
    meter.busy(True, 1.0)
    meter.busy(True, 1.5)
    meter.sent(500, 1.5)
    assert meter.uplink(2.0) == Measured(500.0, 1.0, 0.0)
    assert meter.uplink(2.0) == Measured(500.0, 1.0, 0.0)


def test_newer_measurements_count_more() -> None:
    meter = RateMeter()
    meter.busy(True, 0.0)
    meter.sent(10_000, 10.0)
    assert meter.uplink(10.0).bytes_per_second == 1000.0
    meter.sent(1000, 20.0)
    measured = meter.uplink(20.0)
    assert measured.bytes_per_second == pytest.approx((5000 + 1000) / (5 + 10))
    assert measured.measured_s == pytest.approx(15.0)


def test_the_downlink_is_the_fastest_second_of_the_last_minutes() -> None:
    meter = RateMeter()
    assert meter.downlink_bytes_per_second == 0.0
    for now, size_bytes in ((0.0, 300), (0.9, 300), (1.1, 200), (5.0, 100)):
        meter.received(size_bytes, now)
    assert meter.downlink_bytes_per_second == 600.0
    meter.received(50, 310.0)
    assert meter.downlink_bytes_per_second == 600.0
    meter.received(60, 620.0)
    assert meter.downlink_bytes_per_second == 60.0


@pytest.mark.parametrize(
    ("address", "lan"),
    [
        *(("127.0.0.1", True), ("10.1.2.3", True), ("192.168.0.9", True), ("169.254.1.1", True), ("::1", True)),
        *(("fe80::1%eth0", True), ("8.8.8.8", False), ("2a00:1450::1", False), ("100.64.0.1", False), ("", False)),
    ],
)
def test_addresses_of_the_local_network(address: str, lan: bool) -> None:
    assert is_lan_address(address) is lan


def test_caps_are_shared_by_all_links_beyond_the_local_network() -> None:
    config = LinkConfig(upload_mbit_s_max=8.0, download_mbit_s_max=16.0)
    traffic = LinkTraffic(config)
    assert traffic.of("8.8.8.8") is traffic.of("9.9.9.9")
    assert traffic.of("10.0.0.1").upload is traffic.of("10.0.0.1").download is None
    upload = traffic.of("8.8.8.8").upload
    assert upload is not None
    assert upload.take(1_050_000, 0.0) == 0.0
    assert upload.take(1, 0.0) == pytest.approx(1.0)
    strict = LinkTraffic(config.model_copy(update={"lan_exempt": False}))
    assert strict.of("10.0.0.1").upload is strict.of("8.8.8.8").upload is not None


def test_the_uplink_to_other_networks_comes_before_the_local_one() -> None:
    traffic = LinkTraffic(LinkConfig(), is_lan=lambda address: address == "near")
    near, far = traffic.of("near"), traffic.of("far")
    for one, size_bytes in ((near, 9000), (near, 1000)):
        one.link_waits(True, 0.0)
        one.meter.sent(size_bytes, 1.0)
    near.link_waits(False, 1.0)
    near.meter.sent(10_000, 2.0)
    near.link_waits(False, 2.0)
    assert traffic.uplink(2.0).bytes_per_second == 10_000.0, "busy while any link waits"
    far.link_waits(True, 2.0)
    far.meter.sent(50, 3.0)
    far.link_waits(False, 3.0)
    assert traffic.uplink(3.0).bytes_per_second == 50.0
    near.meter.received(500, 3.0)
    assert traffic.downlink_bytes_per_second == 500.0
    assert traffic.moved_far_bytes == (50, 0)


def test_caps_change_while_links_are_open() -> None:
    traffic = LinkTraffic(LinkConfig(), is_lan=lambda address: address == "near")
    near, far = traffic.of("near"), traffic.of("far")
    assert far.upload is far.download is None
    traffic.cap(LinkConfig(upload_mbit_s_max=8.0, lan_exempt=False))
    assert far.upload is near.upload is not None
    assert far.download is None
    traffic.cap(LinkConfig(download_mbit_s_max=8.0))
    assert far.upload is near.upload is near.download is None
    assert far.download is not None


def test_the_kernel_takes_little_ahead_of_a_cap() -> None:
    traffic = LinkTraffic(LinkConfig(download_mbit_s_max=80.0))
    assert traffic.of("8.8.8.8").kernel_ahead_bytes == 2_000_000
    assert traffic.of("10.0.0.1").kernel_ahead_bytes is None
    for mbit_s, most in ((0.1, 64 << 10), (10_000.0, 4 << 20)):
        traffic.cap(LinkConfig(download_mbit_s_max=mbit_s))
        assert traffic.of("8.8.8.8").kernel_ahead_bytes == most


def test_a_links_sent_bytes_count_only_while_others_wait() -> None:
    rate = LinkRate()
    rate.sent(1000, 0.0)
    assert rate.sent_bytes_per_second(1.0) == 0.0
    rate.waits(True, 1.0)
    rate.sent(300, 1.2)
    assert rate.sent_bytes_per_second(1.3) == 0.0, "too short to say"
    rate.sent(700, 1.5)
    rate.waits(False, 2.0)
    rate.sent(9999, 5.0)
    assert rate.sent_bytes_per_second(6.0) == pytest.approx(1000.0)


def slow_after_s(slowdown: Slowdown, rate: float, links: int = 1, piece: int = 1000, start_s: float = 10.0) -> float:
    """Send pieces at a rate, judge twice a second, and return when the link was slow; 0.0 if never within 5 s."""
    left = 0
    for step in range(1, 501):
        now = start_s + step / 100
        while left + piece <= rate * step / 100:
            left += piece
            slowdown.sent(piece)
        if step % 50 == 0:
            slowdown.judge(links, now)
            if slowdown.slow:
                return step / 100
    return 0.0


def used(rate: float = 100_000.0, piece: int = 1000) -> Slowdown:
    slowdown = Slowdown()
    slowdown.waits(True, 0.0)
    assert slow_after_s(slowdown, rate, piece=piece, start_s=0.0) == 0.0
    slowdown.waits(False, 5.0)
    slowdown.waits(True, 10.0)
    return slowdown


def test_a_tenth_of_the_rate_is_noticed_within_two_seconds() -> None:
    assert 0.0 < slow_after_s(used(), 9_000.0) <= 2.0
    assert 0.0 < slow_after_s(used(), 0.0) <= 2.0
    assert slow_after_s(used(), 20_000.0) == 0.0, "a fifth is not slow"


def test_a_share_of_the_uplink_is_not_slow() -> None:
    assert slow_after_s(used(), 9_000.0, links=12) == 0.0
    assert slow_after_s(used(), 500.0, links=12) > 0.0


def test_large_pieces_get_the_time_that_they_need() -> None:
    assert slow_after_s(used(piece=50_000), 15_000.0, piece=50_000) == 0.0


def test_a_link_recovers_and_idle_time_does_not_count() -> None:
    slowdown = used()
    assert slow_after_s(slowdown, 0.0)
    slowdown.waits(False, 20.0)
    slowdown.waits(True, 500.0)
    slowdown.judge(1, 500.0)
    assert slowdown.slow, "nothing new is known"
    for _ in range(150):
        slowdown.sent(1000)
    slowdown.judge(1, 501.5)
    assert not slowdown.slow


def test_a_steady_stretch_measures_a_links_downlink() -> None:
    rate = LinkRate()
    for tenth in range(12):
        rate.received(100, tenth / 10)
    assert rate.received_bytes_per_second == pytest.approx(1000.0)


def test_scattered_bytes_do_not_measure_the_downlink() -> None:
    rate = LinkRate()
    for second in range(60):
        rate.received(100_000, float(second))
        rate.received(100_000, second + 0.2)
    assert rate.received_bytes_per_second == 0.0


class Counted:
    """A link of which the kernel tells what was acknowledged, or does not."""

    def __init__(self, *counts: int | None) -> None:
        self._counts = iter(counts)

    def newly_acknowledged_bytes(self) -> int | None:
        return next(self._counts)


@pytest.mark.parametrize(
    ("counts", "bytes_per_second"),
    [((60_000, 40_000), 50_000.0), ((60_000, None), 500_000.0), ((8 << 20, 0), 500_000.0), ((0, 0), 500_000.0)],
)
def test_acknowledged_bytes_count_on_a_slow_uplink(counts: tuple[int | None, ...], bytes_per_second: float) -> None:
    traffic = LinkTraffic(LinkConfig())
    far = traffic.of("8.8.8.8")
    far.links.update(Counted(0, count) for count in counts)
    far.link_waits(True, 0.0)
    far.meter.sent(1_000_000, 1.0)
    far.link_waits(True, 2.0)
    assert traffic.uplink(2.0).bytes_per_second == bytes_per_second
