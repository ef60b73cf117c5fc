from __future__ import annotations

import msgspec
import pytest

from coordinator.core.broadcast.link_rates import LinkRates
from coordinator.core.events.events import LinkFacts, PeerFacts
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import heartbeat

A = PeerId("a")


def facts(
    uplink: float = 0.0, *, measured_s: float = 1.0, age_s: float = 0.0, downlink: float = 0.0, probe_id: int = 0
) -> PeerFacts:
    return msgspec.structs.replace(
        heartbeat("a").facts,
        uplink_bytes_per_second=uplink,
        uplink_measured_s=measured_s,
        uplink_age_s=age_s,
        downlink_bytes_per_second=downlink,
        uplink_probe_id=probe_id,
    )


def link(rtt_s: float) -> LinkFacts:
    return LinkFacts(PeerId("b"), "direct", rtt_s, 0, 0, 0.0, "")


def test_nothing_is_known_before_a_measurement() -> None:
    rates = LinkRates()
    rates.observe(A, facts(), 1.0)
    for peer_id in (A, PeerId("stranger")):
        estimate = rates.estimate(peer_id, 1.0)
        assert estimate.uplink_bytes_per_second is None
        assert estimate.uplink_confidence == 0.0


def test_confidence_comes_with_the_time_behind_a_figure_and_goes_with_its_age() -> None:
    brief, long = LinkRates(), LinkRates()
    brief.observe(A, facts(100.0, measured_s=0.05), 0.0)
    long.observe(A, facts(100.0, measured_s=5.0), 0.0)
    assert brief.estimate(A, 0.0).uplink_confidence < 0.2 < 0.9 < long.estimate(A, 0.0).uplink_confidence
    later = long.estimate(A, 1800.0)
    assert later.uplink_confidence == pytest.approx(long.estimate(A, 0.0).uplink_confidence / 2)
    assert (later.uplink_bytes_per_second, later.uplink_age_s) == (100.0, 1800.0)
    assert long.estimate(A, 86400.0).uplink_bytes_per_second is None


def test_the_same_measurement_told_again_changes_nothing() -> None:
    rates = LinkRates()
    rates.observe(A, facts(100.0, age_s=0.5), 10.0)
    before = rates.estimate(A, 20.0)
    rates.observe(A, facts(100.0, age_s=5.6), 15.0)
    assert rates.estimate(A, 20.0) == before


def test_a_link_that_slowed_down_shows_within_a_few_heartbeats() -> None:
    rates = LinkRates()
    for second in range(10):
        rates.observe(A, facts(100.0), float(second))
    estimates = []
    for second in range(10, 14):
        rates.observe(A, facts(10.0), float(second))
        estimates.append(rates.estimate(A, float(second)).uplink_bytes_per_second or 0.0)
    assert 20.0 < estimates[0] < 60.0
    assert estimates[-1] < 15.0


def test_an_estimate_stays_within_its_owners_cap() -> None:
    rates = LinkRates()
    rates.observe(A, facts(100.0), 0.0)
    assert rates.estimate(A, 0.0, upload_cap_bytes_per_second=40.0).uplink_bytes_per_second == 40.0
    assert rates.estimate(A, 0.0, upload_cap_bytes_per_second=400.0).uplink_bytes_per_second == 100.0


def test_a_downlink_limits_only_where_others_receive_far_more() -> None:
    rates = LinkRates()
    for name, rate in (("a", 30.0), ("b", 90.0), ("c", 100.0), ("d", 110.0)):
        rates.observe(PeerId(name), facts(downlink=rate), 0.0)
    assert rates.estimate(A, 0.0).downlink_bytes_per_second is None  # nobody has compared yet
    rates.settle()
    limits = {name: rates.estimate(PeerId(name), 0.0).downlink_bytes_per_second for name in "abcd"}
    assert limits == {"a": 30.0, "b": None, "c": None, "d": None}


def test_round_trips_are_the_median_of_links_and_probes_the_last_one() -> None:
    rates = LinkRates()
    rates.observe(
        A, msgspec.structs.replace(facts(probe_id=7), links=(link(0.03), link(0.0), link(0.01), link(0.2))), 0.0
    )
    assert rates.estimate(A, 0.0).rtt_s == 0.03
    assert (rates.probe_id(A), rates.probe_id(PeerId("stranger"))) == (7, 0)
    rates.observe(A, facts(), 1.0)
    assert rates.estimate(A, 1.0).rtt_s == 0.03  # without links it is as far away as before


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.core.broadcast.link_rates._IDENTITIES_KEPT", 2)
    rates = LinkRates()
    for name in ("a", "b", "a", "c"):
        rates.observe(PeerId(name), facts(100.0), 0.0)
    known = [name for name in "abc" if rates.estimate(PeerId(name), 0.0).uplink_bytes_per_second]
    assert known == ["a", "c"]
