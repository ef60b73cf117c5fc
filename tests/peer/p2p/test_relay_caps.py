from __future__ import annotations

import pytest

from peer.config import LinkConfig
from peer.links.traffic import LinkTraffic
from peer.p2p.circuits.book import CircuitCaps
from peer.p2p.relay_caps import PORTION_BYTES, RelayCaps


def waits(traffic: LinkTraffic, caps: CircuitCaps) -> list[float]:
    passing = RelayCaps(traffic, caps)
    return [passing.next_portion(0.0) for _ in range(3)]


def test_portions_wait_for_the_cap_on_relayed_bytes() -> None:
    caps = CircuitCaps(bytes_per_second=PORTION_BYTES)
    assert waits(LinkTraffic(LinkConfig()), caps) == pytest.approx([0.0, 0.0, 1.0])


@pytest.mark.parametrize("cap", ["upload_mbit_s_max", "download_mbit_s_max"])
def test_portions_wait_for_the_caps_of_all_links(cap: str) -> None:
    config = LinkConfig(**{cap: PORTION_BYTES * 8 / 1e6})
    first, second, third = waits(LinkTraffic(config), CircuitCaps(bytes_per_second=1e12))
    assert first == 0.0
    assert 0.9 < second < third <= 2.0


def test_relayed_bytes_count_as_received_and_sent() -> None:
    traffic = LinkTraffic(LinkConfig())
    passing = RelayCaps(traffic, CircuitCaps())
    assert passing.passed(0.0) == passing.passed_bytes == PORTION_BYTES
    assert traffic.moved_far_bytes == (PORTION_BYTES, PORTION_BYTES)
