"""Test which NAT kind follows from how a machine is seen and which peers reached it, and the advice for it."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.reachability.nat_kind import NatKind, Seen, four_steps, nat_kind, sentence, way_round
from peer.reachability.summary import ReachabilitySummary
from rollcast.wire.proto import rollcast_pb2 as pb

HOME, ROUTER = "192.168.7.2", "203.0.113.9"

KINDS: tuple[NatKind, ...] = get_args(NatKind)


@pytest.mark.parametrize(
    ("seen", "dialled", "kind"),
    [
        (Seen(ROUTER, ROUTER, 4001, 4001, True), True, "open"),
        (Seen(ROUTER, ROUTER, 4001, 4001, False), False, "firewall"),
        (Seen(HOME, ROUTER, 5001, 5001, True), True, "mapped"),
        (Seen(HOME, ROUTER, 5001, 5001, True), False, "full-cone"),
        (Seen(HOME, ROUTER, 5001, 5001, False), False, "port-restricted"),
        (Seen(HOME, ROUTER, 5001, 5002, False), False, "symmetric"),
        (Seen(HOME, ROUTER, 5001, None, False), False, "unknown"),
        (Seen(HOME, ROUTER, 5001, None, True), False, "full-cone"),
        (None, True, "unknown"),
        (None, False, "unknown"),
    ],
)
def test_each_kind_follows_from_what_was_seen(seen: Seen | None, dialled: bool, kind: NatKind) -> None:
    assert nat_kind(seen, dialled=dialled) == kind


@given(
    st.builds(
        Seen,
        st.sampled_from([HOME, ROUTER]),
        st.just(ROUTER),
        st.integers(1, 9),
        st.none() | st.integers(1, 9),
        st.booleans(),
    ),
    st.booleans(),
)
def test_a_machine_that_is_reached_is_open_or_mapped(seen: Seen, dialled: bool) -> None:
    assert (nat_kind(seen, dialled=dialled) in ("open", "mapped")) is dialled


def test_every_kind_but_the_unknown_has_a_sentence() -> None:
    assert [kind for kind in KINDS if not sentence(kind)] == ["unknown"]


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_four_steps_with_this_machines_own_numbers(kind: NatKind) -> None:
    steps = four_steps(kind, local=HOME, address=ROUTER, port=7420).split("\n")
    assert [step[:3] for step in steps] == ["1. ", "2. ", "3. ", "4. "]
    assert 'link.advertise = "203.0.113.9:7420"' in steps[2]
    assert (HOME in steps[0]) is (kind != "firewall")
    assert ("provider translates addresses too" in steps[3]) is (kind != "firewall")
    over_ipv6 = four_steps(kind, local="", address="2001:db8::1", port=7420)
    assert '"[2001:db8::1]:7420"' in over_ipv6
    assert ('link.host = "::"' in over_ipv6) is (kind == "firewall")


@pytest.mark.parametrize(
    ("kind", "punch", "p2p", "words"),
    [
        ("full-cone", True, False, "every other machine can connect when both dial"),
        ("port-restricted", True, True, "unless their router is symmetric; other links go through third machines"),
        (
            "symmetric",
            True,
            False,
            "only those behind a full cone can connect; other links need third machines (relays): install the",
        ),
        ("firewall", False, True, "link.punch is off; other links go through third machines"),
        ("full-cone", False, False, "link.punch is off; other links need third machines"),
    ],
)
def test_the_ways_to_link_meanwhile(kind: NatKind, punch: bool, p2p: bool, words: str) -> None:
    assert words in way_round(kind, punch=punch, p2p=p2p)


@pytest.mark.parametrize("kind", ["open", "mapped", "unknown"])
def test_no_way_is_named_where_none_is_needed_or_known(kind: NatKind) -> None:
    assert way_round(kind, punch=True, p2p=True) == ""


HOME_NETWORK = Seen("10.0.0.2", "192.0.2.1", 4000, 4000, reached=False)

FOUND = pb.DialVerdict(address="192.0.2.1:7", dialable=True, asked=4, reached=3)

REFUTED = pb.DialVerdict(address="192.0.2.1:7", dialable=False, asked=4, reached=1, problem="no answer")


@pytest.mark.parametrize(
    ("seen", "verdict", "kind"),
    [
        (None, None, "unknown"),
        (None, FOUND, "unknown"),
        (HOME_NETWORK, None, "port-restricted"),
        (HOME_NETWORK, FOUND, "mapped"),
        (HOME_NETWORK, REFUTED, "port-restricted"),
        (Seen("192.0.2.1", "192.0.2.1", 4000, 4000, reached=True), None, "open"),
        (Seen("192.0.2.1", "192.0.2.1", 4000, 4000, reached=False), REFUTED, "firewall"),
        (Seen("10.0.0.2", "192.0.2.1", 4000, 4001, reached=False), None, "symmetric"),
    ],
)
def test_the_kind(seen: Seen | None, verdict: pb.DialVerdict | None, kind: NatKind) -> None:
    assert ReachabilitySummary(seen, verdict).nat == kind


def test_the_summary_is_described_in_words() -> None:
    summary, told = ReachabilitySummary(), pb.Reachability()
    assert summary.describe(told, "")["reachability"] == "only outwards"
    assert summary.describe(told, "192.0.2.1:7")["checked"] == "not dialled back yet"
    summary.verdict = FOUND
    found = summary.describe(told, "192.0.2.1:7")
    checked = "3 of 4 peers that tried could connect to 192.0.2.1:7"
    assert (found["reachability"], found["checked"]) == ("dialable", checked)
    summary.verdict = REFUTED
    found = summary.describe(told, "192.0.2.1:7")
    assert (found["reachability"], found["checked"]) == (
        "only outwards",
        "1 of 4 peers that tried could connect to 192.0.2.1:7: no answer",
    )
    summary.verdict = pb.DialVerdict(address="192.0.2.1:7", dialable=True, problem="its session comes from elsewhere")
    found = summary.describe(told, "192.0.2.1:7")
    assert (found["reachability"], found["checked"]) == ("dialable", "not checked: its session comes from elsewhere")


def test_holes_need_a_port_with_a_known_outside_address() -> None:
    summary = ReachabilitySummary(HOME_NETWORK, REFUTED)
    told = pb.Reachability(nat="port-restricted", punch_address="192.0.2.1:9", circuits=["one"])
    found = summary.describe(told, "192.0.2.1:7")
    assert (found["reachability"], found["nat"], found["relays"]) == ("hole-punchable", "port-restricted", 1)
    told.nat = "symmetric"
    assert summary.describe(told, "")["reachability"] == "only outwards"
    told.punch_address_ipv6 = "[2001:db8::1]:9"
    found = summary.describe(told, "")
    assert (found["reachability"], found["punch_address_ipv6"]) == ("hole-punchable", "[2001:db8::1]:9")
    assert "over IPv6" in found["nat_means"]
