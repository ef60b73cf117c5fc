"""Test that peers' messages about their reachability become events, with texts cut to what may be shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.events.reach_events import (
    DialBackEnded,
    PunchEnded,
    PunchRequested,
    ReachabilityTold,
    RecordGiven,
)
from coordinator.rpc.reach_messages import reach_event_of
from coordinator.rpc.sanitise import counter, duration_s, rate, text
from rollcast.runtime.errors import BadSignature, MalformedMessage
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.peer_record import PeerRecord, sign_record
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.limits import COUNTER_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

A = PeerId("a")

CIRCUIT = "/ip4/192.0.2.1/tcp/4001/p2p/R/p2p-circuit/p2p/T"


def test_messages_become_events() -> None:
    said = pb.Reachability(
        nat="symmetric",
        punch_address="192.0.2.7:7",
        circuits=[CIRCUIT],
        relay_address="/ip4/192.0.2.1/tcp/4001",
        advertise="host:1",
        local_address="192.168.1.2:7420",
        punch_address_ipv6="[2001:db8::1]:7",
    )
    event = ReachabilityTold(
        A,
        "symmetric",
        "192.0.2.7:7",
        (CIRCUIT,),
        "/ip4/192.0.2.1/tcp/4001",
        "host:1",
        "192.168.1.2:7420",
        "[2001:db8::1]:7",
    )
    assert reach_event_of(A, pb.PeerMessage(reachability=said)) == event
    request = pb.PeerMessage(punch_request=pb.PunchRequest(peer_id="b"))
    assert reach_event_of(A, request) == PunchRequested(A, PeerId("b"))
    outcome = pb.PeerMessage(punch_outcome=pb.PunchOutcome(punch_id=3, opened=True, seconds=-1.0))
    assert reach_event_of(A, outcome) == PunchEnded(A, 3, True, 0.0)
    found = pb.PeerMessage(dial_back_outcome=pb.DialBackOutcome(check_id=4, problem="refused\n"))
    assert reach_event_of(A, found) == DialBackEnded(A, 4, False, "refused ")
    assert reach_event_of(A, pb.PeerMessage(heartbeat=pb.Heartbeat())) is None


def test_record_of_another_peer_is_refused() -> None:
    identity = Identity.generate()
    record = PeerRecord(RunId("run-1"), identity.peer_id, "peer", 1, ("192.0.2.1:4000",), 2_000_000_000)
    signed = sign_record(record, identity)
    message = pb.PeerMessage(peer_records=pb.PeerRecords(records=[signed]))
    event = reach_event_of(identity.peer_id, message)
    assert isinstance(event, RecordGiven)
    assert pb.Signed.FromString(event.signed) == signed
    with pytest.raises(MalformedMessage, match="another peer"):
        reach_event_of(A, message)
    signed.signature = bytes(64)
    with pytest.raises(BadSignature):
        reach_event_of(identity.peer_id, pb.PeerMessage(peer_records=pb.PeerRecords(records=[signed])))


def test_unknown_kind_becomes_unknown() -> None:
    event = reach_event_of(A, pb.PeerMessage(reachability=pb.Reachability(nat="carrier pigeon")))
    assert event == ReachabilityTold(A, "unknown")


@pytest.mark.parametrize("address", ["192.0.2.1:80", "127.0.0.1:80", "router.lan:80", "192.168.1.2:80 10.0.0.1:80"])
def test_local_address_outside_local_networks_is_dropped(address: str) -> None:
    event = reach_event_of(A, pb.PeerMessage(reachability=pb.Reachability(local_address=address)))
    assert event == ReachabilityTold(A, "")


def test_empty_reachability_means_unknown() -> None:
    assert reach_event_of(A, pb.PeerMessage(reachability=pb.Reachability())) == ReachabilityTold(A, "")


@pytest.mark.parametrize(
    "message",
    [
        pb.PeerMessage(reachability=pb.Reachability(punch_address="example.org:80")),
        pb.PeerMessage(reachability=pb.Reachability(punch_address="192.0.2.1")),
        pb.PeerMessage(reachability=pb.Reachability(punch_address="192.0.2.1:0")),
        pb.PeerMessage(reachability=pb.Reachability(punch_address="192.0.2.1:65536")),
        pb.PeerMessage(reachability=pb.Reachability(punch_address=":80")),
        pb.PeerMessage(reachability=pb.Reachability(punch_address="[2001:db8::1]:7")),
        pb.PeerMessage(reachability=pb.Reachability(punch_address_ipv6="192.0.2.1:7")),
        pb.PeerMessage(reachability=pb.Reachability(punch_address_ipv6="[2001:db8::1]:0")),
        pb.PeerMessage(reachability=pb.Reachability(circuits=[CIRCUIT] * 5)),
        pb.PeerMessage(reachability=pb.Reachability(circuits=["punch"])),
        pb.PeerMessage(reachability=pb.Reachability(circuits=["/ip4/1.2.3.4/tcp/1 /ip4/1.2.3.4/tcp/2"])),
        pb.PeerMessage(reachability=pb.Reachability(relay_address="/" + "x" * 600)),
        pb.PeerMessage(punch_request=pb.PunchRequest()),
        pb.PeerMessage(punch_request=pb.PunchRequest(peer_id="x" * 99)),
        pb.PeerMessage(punch_outcome=pb.PunchOutcome(punch_id=2**64 - 1)),
        pb.PeerMessage(peer_records=pb.PeerRecords()),
        pb.PeerMessage(peer_records=pb.PeerRecords(records=[pb.Signed(payload=b"x" * 9999)])),
    ],
)
def test_values_out_of_bounds_are_refused(message: pb.PeerMessage) -> None:
    with pytest.raises(MalformedMessage):
        reach_event_of(A, message)


@given(st.text(max_size=80))
def test_any_text_is_an_address_or_malformed(text: str) -> None:
    message = pb.PeerMessage(reachability=pb.Reachability(punch_address=text.encode("utf-8", "replace").decode()))
    try:
        event = reach_event_of(A, message)
    except MalformedMessage:
        return
    assert isinstance(event, ReachabilityTold)
    assert event.punch_address == "" or event.punch_address.rpartition(":")[2].isdigit()


def test_counters_are_limited_to_storable_values() -> None:
    assert counter(COUNTER_MAX) == COUNTER_MAX
    with pytest.raises(MalformedMessage):
        counter(COUNTER_MAX + 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_impossible_rates_become_unmeasured(value: float) -> None:
    assert (rate(value), duration_s(value)) == (0.0, 0.0)


def test_possible_rates_are_kept() -> None:
    assert (rate(125e6), duration_s(0.04)) == (125e6, 0.04)


def test_texts_cannot_draw_on_a_screen() -> None:
    assert text("\x1b[2J ok") == " [2J ok"
    assert text("abcdef", 3) == "abc"
