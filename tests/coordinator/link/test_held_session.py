"""Test what a gateway repeats of a session to a core that comes back."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.events.events import (
    HeartbeatReceived,
    LeasesReturned,
    PartialReceived,
    PeerJoined,
    VersionHeld,
    WorkRequested,
)
from coordinator.core.events.reach_events import PunchRequested, ReachabilityTold
from coordinator.link import held_session
from coordinator.link.held_session import HeldSession
from coordinator.rpc.heartbeats import facts_of
from rollcast.wire.ids import Epoch, FencingToken, LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import PartialRollout

ALICE = PeerId("alice")
JOINED = PeerJoined(ALICE, "peer", "attic", "", 8, "CPU", held_leases=(LeaseId(7),))


def held(version: int) -> VersionHeld:
    return VersionHeld(ALICE, Epoch(0), Version(version))


def beat(tokens: int) -> HeartbeatReceived:
    return HeartbeatReceived(ALICE, facts_of(pb.Heartbeat(tokens_generated=tokens)))


def leases(*slots: int) -> pb.CoordinatorMessage:
    granted = [pb.Lease(slots=[pb.Slot(sample_index=index) for index in range(count)]) for count in slots]
    return pb.CoordinatorMessage(leases=pb.Leases(leases=granted))


def test_the_newest_report_of_each_kind_is_repeated() -> None:
    session, reach = HeldSession(JOINED), ReachabilityTold(ALICE, "cone")
    partial = PartialReceived(ALICE, PartialRollout(LeaseId(1), FencingToken(1), 0, 0, ()))
    for event in (beat(1), held(1), reach, held(2), beat(2), partial, PunchRequested(ALICE, PeerId("bob"))):
        session.note(event, heard=True)
    assert session.repeated() == [held(2), reach, beat(2)]
    assert session.repeated() == [held(2), reach, beat(2)]
    assert session.joined.held_leases is None, "it may hold other leases by now"


def test_a_heartbeat_without_links_is_repeated_with_those_reported_before() -> None:
    held = HeldSession(JOINED)
    linked = pb.Heartbeat(tokens_generated=1, links=[pb.LinkReport(peer_id="bob")])
    held.note(HeartbeatReceived(ALICE, facts_of(linked)), heard=True)
    held.note(HeartbeatReceived(ALICE, facts_of(pb.Heartbeat(tokens_generated=2)), links_left_out=True), heard=True)
    (repeated,) = held.repeated()
    assert isinstance(repeated, HeartbeatReceived)
    assert repeated.facts.tokens_generated == 2
    assert repeated.facts.links == facts_of(linked).links


def announcement(version: int) -> pb.CoordinatorMessage:
    record = pb.VersionRecord(epoch=0, version=version).SerializeToString()
    return pb.CoordinatorMessage(announcement=pb.VersionAnnouncement(record=pb.Signed(payload=record)))


def test_the_newest_version_that_was_announced_is_named() -> None:
    session = HeldSession(JOINED)
    assert session.resumed().heard_version is None
    for version in (0, 3, 2):
        session.delivered(announcement(version))
    assert session.resumed() == replace(session.joined, heard_version=Version(3))


def test_slots_that_were_leased_are_not_asked_for_again() -> None:
    session = HeldSession(JOINED)
    session.delivered(leases(3))  # before any request
    session.note(WorkRequested(ALICE, 8), heard=True)
    session.delivered(leases(2, 3))
    session.delivered(pb.CoordinatorMessage(stop=pb.Stop()))
    assert session.repeated() == [WorkRequested(ALICE, 3)]
    session.delivered(leases(5))
    assert session.repeated() == [WorkRequested(ALICE, 0)]
    session.note(WorkRequested(ALICE, 4), heard=False)
    assert session.repeated() == [WorkRequested(ALICE, 4)]


def test_leases_returned_without_a_core_are_told_once() -> None:
    session = HeldSession(JOINED)
    session.note(WorkRequested(ALICE, 8), heard=True)
    session.note(LeasesReturned(ALICE, (LeaseId(1),), "heard"), heard=True)
    missed = [LeasesReturned(ALICE, (LeaseId(number),), "") for number in range(2, 30)]
    for event in missed:
        session.note(event, heard=False)
    assert session.repeated() == [*missed[-held_session._RETURNS_KEPT :], WorkRequested(ALICE, 0)]
    assert session.repeated() == [WorkRequested(ALICE, 0)]
