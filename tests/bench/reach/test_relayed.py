"""Test bench.reach.relayed with two homes behind symmetric routers, and a relay between them."""

from __future__ import annotations

import pytest

pytest.importorskip("libp2p")

from bench.reach import relayed
from bench.wan import build


@pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())
def test_two_symmetric_homes_have_a_link_through_a_relay_in_time() -> None:
    figures = relayed.measured("symmetric", delay_ms=15.0, tries=2, mib=4)
    assert figures["through"] == 1.0
    assert 0.0 < figures["dial_median_s"] <= figures["dial_max_s"] < 5.0, "as docs/p2p.md promises"
    assert figures["mb_s"] > 0.0
    assert figures["mb_per_core_s"] > 0.0
