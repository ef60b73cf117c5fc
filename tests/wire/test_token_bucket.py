"""Test the cap on rates."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.wire.token_bucket import TokenBucket


def test_bytes_beyond_the_burst_delay_the_next_request() -> None:
    bucket = TokenBucket(1000.0, 100.0)
    assert bucket.take(60, 5.0) == 0.0
    assert bucket.take(1040, 5.0) == 0.0, "a chunk larger than the burst passes, into debt"
    assert bucket.take(10, 5.0) == pytest.approx(1.0)
    assert bucket.take(10, 5.5) == pytest.approx(0.51)
    assert bucket.take(10, 6.03) == 0.0


def test_a_pause_saves_no_more_than_the_burst() -> None:
    bucket = TokenBucket(1000.0, 100.0)
    bucket.take(100, 0.0)
    bucket.take(200, 1000.0)
    assert bucket.take(1, 1000.0) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0.0, 2.0)), min_size=1, max_size=40))
@settings(deadline=None, max_examples=60)
def test_the_cap_holds_over_any_time(takes: list[tuple[int, float]]) -> None:
    """If all wait as long as returned, at most burst + rate * time + the last request has passed at any time."""
    bucket = TokenBucket(1000.0, 500.0)
    now, passed = 0.0, []
    for size_bytes, pause_s in takes:
        now += pause_s
        passed.append((now + bucket.take(size_bytes, now), size_bytes))
    began_s, total = min(passed)[0], 0
    for at_s, size_bytes in sorted(passed):
        assert total <= 500.0 + 1000.0 * (at_s - began_s) + 1e-6
        total += size_bytes
