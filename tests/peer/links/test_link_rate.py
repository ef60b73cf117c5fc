from __future__ import annotations

import pytest

from peer.links.rates import LinkRate


def test_what_leaves_counts_only_while_something_waits() -> None:
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


def test_what_keeps_coming_says_how_fast_the_link_is() -> None:
    rate = LinkRate()
    for tenth in range(12):
        rate.received(100, tenth / 10)
    assert rate.received_bytes_per_second == pytest.approx(1000.0)


def test_what_comes_now_and_then_says_nothing() -> None:
    rate = LinkRate()
    for second in range(60):
        rate.received(100_000, float(second))
        rate.received(100_000, second + 0.2)
    assert rate.received_bytes_per_second == 0.0
