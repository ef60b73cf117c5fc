"""Test the limits on uploads: calls and bytes of identities, and of all identities of an invite or an address."""

from __future__ import annotations

import contextlib

import pytest

from coordinator.rpc.upload_limits import UploadLimits, UploadRates
from rollcast.runtime.errors import RateLimited

RATES = UploadRates(calls_per_second=10.0, bytes_per_second=1000.0, calls_at_once=2, together=3.0)


def test_an_identity_has_few_uploads_in_progress() -> None:
    limits = UploadLimits(RATES)
    for _ in range(2):
        assert limits.begin("a", (), 0.0) == 0.0
    with pytest.raises(RateLimited, match="too fast"):
        limits.begin("a", (), 0.0)
    assert limits.begin("b", (), 0.0) == 0.0, "that is no other identity's fault"
    limits.end("a")
    assert limits.begin("a", (), 0.0) == 0.0


def test_calls_beyond_the_rate_wait_and_then_are_refused() -> None:
    limits, waits = UploadLimits(RATES), []
    for _ in range(10 * (1 + 5)):  # a burst of 1 s passes, and 5 s may be waited
        waits.append(limits.begin("a", (), 0.0))
        limits.end("a")
    assert waits[9] == 0.0 < waits[12] < waits[-1] < 5.0
    for _ in range(2):
        with contextlib.suppress(RateLimited):
            limits.begin("a", (), 0.0)
            limits.end("a")
    with pytest.raises(RateLimited, match="too fast"):
        limits.begin("a", (), 0.0)


def test_a_message_of_a_stream_counts_as_a_call() -> None:
    limits = UploadLimits(RATES)
    assert limits.begin("a", (), 0.0) == 0.0
    waits = [limits.next("a", (), 0.0) for _ in range(12)]
    assert waits[9] == 0.0 < waits[-1]
    assert limits.next("b", (), 0.0) == 0.0


def test_bytes_beyond_the_rate_are_read_later() -> None:
    limits = UploadLimits(RATES)
    assert limits.read("a", (), 1000, 0.0) == 0.0
    assert limits.read("a", (), 2000, 0.0) == pytest.approx(2.0)
    assert limits.read("a", (), 0, 2.0) == 0.0


def test_identities_of_one_invite_share_a_limit() -> None:
    limits = UploadLimits(RATES)
    for number in range(3):
        assert limits.read(f"sybil-{number}", ("invite x",), 1000, 0.0) == 0.0
    assert limits.read("sybil-9", ("invite x",), 1000, 0.0) == pytest.approx(1 / 3)
    assert limits.read("honest", ("invite y",), 1000, 0.0) == 0.0


def test_what_is_kept_is_bounded() -> None:
    limits = UploadLimits(RATES)
    for number in range(17_000):
        limits.read(str(number), (), 1, 0.0)
    assert len(limits._bytes) == 16_384
