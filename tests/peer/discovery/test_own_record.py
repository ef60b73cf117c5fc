from __future__ import annotations

from peer.discovery.own_record import OwnRecord, own_addresses
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.peer_record import LIFETIME_S, PeerRecord, verify_record
from rollcast.wire.ids import RunId
from rollcast.wire.limits import PEER_ADDRESSES_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

NOW = 1_800_000_000.0
RUN = RunId("run-1")
IDENTITY = Identity.generate()


def own() -> OwnRecord:
    return OwnRecord(IDENTITY, RUN, "peer")


def read(record: OwnRecord, now: float) -> PeerRecord:
    assert record.signed is not None
    return verify_record(record.signed, run_id=RUN, now_unix_s=now)


def test_a_record_is_signed_anew_when_addresses_change_and_at_half_its_life() -> None:
    record = own()
    assert record.signed is None
    assert record.update(("a:1",), NOW)
    assert not record.update(("a:1",), NOW + 60)
    first = read(record, NOW + 60)
    assert record.update(("a:2",), NOW + 60)
    second = read(record, NOW + 60)
    assert second.sequence > first.sequence
    assert second.addresses == ("a:2",)
    assert record.update(("a:2",), NOW + 60 + LIFETIME_S / 2)
    assert read(record, NOW + LIFETIME_S).sequence > second.sequence


def test_sequence_numbers_rise_over_restarts() -> None:
    before, after = own(), own()
    before.update(("a:1",), NOW)
    after.update(("a:1",), NOW + 1)
    assert read(after, NOW + 1).sequence > read(before, NOW + 1).sequence


def test_sequence_numbers_rise_although_the_clock_is_set_back() -> None:
    record = own()
    record.update(("a:1",), NOW)
    sequence = read(record, NOW).sequence
    assert record.update(("a:1",), NOW - 86400)
    assert read(record, NOW - 86400).sequence > sequence


def test_more_addresses_than_receivers_take_are_left_out() -> None:
    record = own()
    record.update((*(f"a:{number}" for number in range(9)), "x" * 999), NOW)
    assert len(read(record, NOW).addresses) == PEER_ADDRESSES_MAX


def test_discovered_addresses_come_before_configured_ones() -> None:
    circuit = "/ip4/192.0.2.1/tcp/1/p2p/R/p2p-circuit/p2p/T"
    assert own_addresses("a:1 /ip4/192.0.2.9/tcp/2", pb.Reachability(), None) == ("a:1", "/ip4/192.0.2.9/tcp/2")
    told = pb.Reachability(advertise="b:1", circuits=[circuit])
    assert own_addresses("a:1", told, None) == ("b:1", circuit)
    assert own_addresses("", pb.Reachability(circuits=[circuit]), None) == (circuit,)
    assert own_addresses("", pb.Reachability(), None) == ()


def test_an_address_that_no_peer_reached_is_left_out() -> None:
    told = pb.Reachability()
    nobody = pb.DialVerdict(address="a:1", asked=4, reached=0)
    assert own_addresses("a:1 /ip4/192.0.2.9/tcp/2", told, nobody) == ("/ip4/192.0.2.9/tcp/2",)
    assert own_addresses("a:1", told, pb.DialVerdict(address="a:1", asked=4, dialable=True)) == ("a:1",)
    assert own_addresses("a:1", told, pb.DialVerdict(address="a:1")) == ("a:1",)
