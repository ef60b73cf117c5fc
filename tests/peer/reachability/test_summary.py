"""What is made of how a machine is seen and of who got through to it."""

from __future__ import annotations

import pytest

from peer.reachability.nat_kind import NatKind, Seen
from peer.reachability.summary import ReachabilitySummary
from rollcast.wire.proto import rollcast_pb2 as pb

HOME = Seen("10.0.0.2", "192.0.2.1", 4000, 4000, reached=False)
FOUND = pb.DialVerdict(address="192.0.2.1:7", dialable=True, asked=4, reached=3)
REFUTED = pb.DialVerdict(address="192.0.2.1:7", dialable=False, asked=4, reached=1, problem="no answer")


@pytest.mark.parametrize(
    ("seen", "verdict", "kind"),
    [
        (None, None, "unknown"),
        (None, FOUND, "unknown"),
        (HOME, None, "port-restricted"),
        (HOME, FOUND, "mapped"),
        (HOME, REFUTED, "port-restricted"),
        (Seen("192.0.2.1", "192.0.2.1", 4000, 4000, reached=True), None, "open"),
        (Seen("192.0.2.1", "192.0.2.1", 4000, 4000, reached=False), REFUTED, "firewall"),
        (Seen("10.0.0.2", "192.0.2.1", 4000, 4001, reached=False), None, "symmetric"),
    ],
)
def test_the_kind(seen: Seen | None, verdict: pb.DialVerdict | None, kind: NatKind) -> None:
    assert ReachabilitySummary(seen, verdict).nat == kind


def test_it_is_said_in_words() -> None:
    summary, told = ReachabilitySummary(), pb.Reachability()
    assert summary.describe(told, "")["reachability"] == "only outwards"
    assert summary.describe(told, "192.0.2.1:7")["checked"] == "not dialled back yet"
    summary.verdict = FOUND
    found = summary.describe(told, "192.0.2.1:7")
    assert (found["reachability"], found["checked"]) == ("dialable", "3 of 4 got through to 192.0.2.1:7")
    summary.verdict = REFUTED
    found = summary.describe(told, "192.0.2.1:7")
    assert (found["reachability"], found["checked"]) == (
        "only outwards",
        "1 of 4 got through to 192.0.2.1:7: no answer",
    )
    summary.verdict = pb.DialVerdict(address="192.0.2.1:7", dialable=True, problem="its session comes from elsewhere")
    found = summary.describe(told, "192.0.2.1:7")
    assert (found["reachability"], found["checked"]) == ("dialable", "not checked: its session comes from elsewhere")


def test_holes_need_a_port_that_others_can_know() -> None:
    summary = ReachabilitySummary(HOME, REFUTED)
    told = pb.Reachability(nat="port-restricted", punch_address="192.0.2.1:9", circuits=["one"])
    found = summary.describe(told, "192.0.2.1:7")
    assert (found["reachability"], found["nat"], found["relays"]) == ("hole-punchable", "port-restricted", 1)
    told.nat = "symmetric"
    assert summary.describe(told, "")["reachability"] == "only outwards"
