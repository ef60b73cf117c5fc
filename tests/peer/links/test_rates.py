from __future__ import annotations

import pytest

from peer.links.rates import Measured, RateMeter


def test_only_what_leaves_while_something_waits_counts() -> None:
    meter = RateMeter()
    meter.sent(1_000_000, 0.0)
    assert meter.uplink(1.0) == Measured()
    meter.busy(True, 1.0)
    meter.sent(1000, 1.5)
    meter.sent(1000, 3.0)
    meter.busy(False, 3.0)
    meter.sent(1_000_000, 3.5)
    assert meter.uplink(7.0) == Measured(1000.0, 2.0, 4.0)


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
