"""Rates of links as measured, and which links are probed for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from coordinator.core.broadcast.link_rates import LinkRates
from coordinator.core.broadcast.probing import ProbeSettings, Probing
from coordinator.core.events.actions import SendProbe
from coordinator.core.events.events import LinkFacts, PeerFacts
from rollcast.runtime import windows
from rollcast.runtime.windows import RecentIdentities
from rollcast.wire.ids import PeerId, Version
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


def test_a_repeated_measurement_changes_nothing() -> None:
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


def receive(rates: LinkRates, name: str, rate: float, *, broadcasts: int, seconds: float = 5.0) -> None:
    """Let a peer receive versions, each for that many seconds at this rate, and say so in heartbeats."""
    for version in range(broadcasts):
        for had, receiving in ((version, Version(version)), (version + 1, None)):
            beat = msgspec.structs.replace(
                facts(downlink=rate), receiving_version=receiving, chunk_bytes_from_peers=int(had * seconds * rate)
            )
            rates.observe(PeerId(name), beat, 0.0)


FIVE = (("a", 30.0), ("b", 80.0), ("c", 90.0), ("d", 100.0), ("e", 110.0))


def test_a_downlink_limits_only_where_fast_receivers_get_more() -> None:
    rates = LinkRates()
    for name, rate in FIVE:
        receive(rates, name, rate, broadcasts=2)
    assert rates.estimate(A, 0.0).downlink_bytes_per_second is None  # nobody has compared yet
    rates.settle()
    limits = {name: rates.estimate(PeerId(name), 0.0).downlink_bytes_per_second for name in "abcde"}
    assert limits == {"a": 30.0, "b": 80.0, "c": None, "d": None, "e": None}


def test_one_broadcast_or_one_of_a_moment_shows_no_downlink() -> None:
    once, moments = LinkRates(), LinkRates()
    for name, rate in FIVE:
        receive(once, name, rate, broadcasts=1)
        receive(moments, name, rate, broadcasts=10, seconds=0.5)
    for rates in (once, moments):
        rates.settle()
        assert rates.estimate(A, 0.0).downlink_bytes_per_second is None


def test_a_peer_whose_process_began_anew_is_counted_on() -> None:
    rates = LinkRates()
    for _ in range(2):
        for name, rate in FIVE:
            receive(rates, name, rate, broadcasts=1)
    rates.settle()
    assert rates.estimate(A, 0.0).downlink_bytes_per_second == 30.0


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
    monkeypatch.setattr(RecentIdentities, "limit", 2)
    rates = LinkRates()
    for name in ("a", "b", "a", "c"):
        rates.observe(PeerId(name), facts(100.0), 0.0)
    known = [name for name in "abc" if rates.estimate(PeerId(name), 0.0).uplink_bytes_per_second]
    assert known == ["a", "c"]


def test_the_rates_of_every_member_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "IDENTITIES_KEPT", 2)
    rates = LinkRates()
    rates.joined(3)
    for name in "abc":
        rates.observe(PeerId(name), facts(100.0), 0.0)
    assert all(rates.estimate(PeerId(name), 0.0).uplink_bytes_per_second for name in "abc")


SETTINGS = ProbeSettings(bytes_max=1000, seconds_max=2.0, spacing_s=1.0)

MEMBERS = 40

TO_C = {"a": ["c"], "b": ["c"]}


def asked(
    probing: Probing,
    confidences: Mapping[str, float],
    now: float,
    *,
    targets: Mapping[str, Sequence[str]] = TO_C,
    idle: str = "abcde",
    members: int = MEMBERS,
) -> list[SendProbe]:
    if not probing.is_time(members, now):
        return []
    return probing.next(
        [(PeerId(name), confidence) for name, confidence in confidences.items()],
        now,
        is_idle=lambda peer_id: peer_id in idle,
        targets_of=lambda peer_id: [PeerId(name) for name in targets.get(peer_id, ())],
    )


def test_one_at_a_time_the_least_known_first() -> None:
    probing = Probing(SETTINGS)
    assert asked(probing, {"a": 0.1, "b": 0.0}, 0.0) == [SendProbe(PeerId("b"), 1, PeerId("c"), 1000, 2.0)]
    assert asked(probing, {"a": 0.1, "b": 0.0}, 5.0) == []  # it is under way
    assert probing.running == ["b"]
    probing.reported(PeerId("b"), 0)  # that was an earlier one
    assert asked(probing, {"a": 0.1, "b": 0.0}, 6.0) == []
    probing.reported(PeerId("b"), 1)
    assert probing.running == []
    (second,) = asked(probing, {"a": 0.1, "b": 0.9}, 20.0)
    assert (second.peer_id, second.probe_id) == ("a", 2)


def test_those_that_are_known_busy_or_without_an_idle_target_are_left_alone() -> None:
    probing = Probing(SETTINGS)
    assert asked(probing, {"a": 0.5}, 0.0) == []
    assert asked(probing, {"b": 0.0}, 5.0) == []  # looked in vain just now
    assert asked(probing, {"b": 0.0}, 10.0, idle="ab") == []  # its target is busy
    assert asked(probing, {"b": 0.0}, 20.0, idle="c") == []
    assert len(asked(probing, {"b": 0.0}, 30.0)) == 1


def test_peers_that_need_no_probe_are_not_checked_for_idleness() -> None:
    probing, looked_at = Probing(SETTINGS), []

    def is_idle(peer_id: PeerId) -> bool:
        looked_at.append(peer_id)
        return False

    uplinks = [(PeerId("a"), 0.9), (PeerId("b"), 0.0)]
    assert probing.next(uplinks, 0.0, is_idle=is_idle, targets_of=lambda _: ()) == []
    assert looked_at == ["b"]


def test_a_probe_without_a_result_is_repeated_ever_later() -> None:
    probing = Probing(SETTINGS)
    times = [now for now in map(float, range(0, 4000, 5)) if asked(probing, {"a": 0.0}, now)]
    assert times == [0.0, 600.0, 1800.0]


def test_several_at_once_only_among_many_and_never_to_the_same_target() -> None:
    probing = Probing(SETTINGS)
    targets = TO_C | {"d": ["c", "e"], "c": ["a"]}
    everybody = dict.fromkeys("abcd", 0.0)
    found: list[tuple[str, str]] = []
    for now in range(10):
        probes = asked(probing, everybody, float(now), targets=targets, members=200)
        found += [(one.peer_id, one.to_peer) for one in probes]
    assert found == [("a", "c"), ("d", "e")]


def test_a_peer_that_left_frees_its_place_and_probing_can_be_switched_off() -> None:
    probing = Probing(SETTINGS)
    assert asked(probing, {"a": 0.0, "b": 0.0}, 0.0)
    probing.left(PeerId("a"))
    assert [one.peer_id for one in asked(probing, {"b": 0.0}, 1.0)] == ["b"]
    assert not Probing(ProbeSettings(bytes_max=0)).is_time(MEMBERS, 0.0)
