from __future__ import annotations

import pytest

from peer.relay_actions import Accuse, SendCancel, SendCredit, SendHave, SendWant
from peer.relay_events import (
    CancelReceived,
    CreditReceived,
    EncodingKey,
    Event,
    HaveReceived,
    HeldReceived,
    LinkId,
    Neighbour,
    PlanChanged,
    WantReceived,
)
from peer.relay_wire import accusation_of, event_of, key_of, message_of, plan_of
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, PlanId, Version
from rollcast.wire.proto import rollcast_pb2 as pb

KEY = EncodingKey(Version(7), EncodingId(2))
HERE, THERE = LinkId(1), LinkId(9)


@pytest.mark.parametrize(
    ("action", "event"),
    [
        (SendWant(HERE, KEY), WantReceived(THERE, KEY)),
        (SendHave(HERE, KEY, 9, b"\x80\x80", False), HaveReceived(THERE, KEY, 9, b"\x80\x80", False)),
        (SendHave(HERE, KEY, 0, b"", True), HaveReceived(THERE, KEY, 0, b"", True)),
        (SendCredit(HERE, KEY, 5), CreditReceived(THERE, KEY, 5)),
        (SendCancel(HERE, KEY, "why"), CancelReceived(THERE, KEY, "why")),
    ],
)
def test_what_one_core_sends_the_other_receives(
    action: SendWant | SendHave | SendCredit | SendCancel, event: Event
) -> None:
    assert event_of(THERE, pb.LinkMessage.FromString(message_of(action).SerializeToString())) == event


def test_an_acknowledgement_names_its_version() -> None:
    assert event_of(THERE, pb.LinkMessage(held=pb.VersionHeld(version=7))) == HeldReceived(THERE, Version(7))


def test_messages_that_the_shell_looks_into_are_no_events() -> None:
    assert event_of(THERE, pb.LinkMessage(chunk_list=pb.ChunkList(version=7))) is None
    assert key_of(pb.ChunkList(version=7, encoding_id=2)) == KEY


def test_the_coordinators_plan_names_who_dials_whom() -> None:
    def neighbour(name: str, we_dial: bool) -> pb.PlanNeighbour:
        return pb.PlanNeighbour(peer_id=name, role="peer", address=f"{name}:1", we_dial=we_dial)

    plan = pb.RelayPlan(
        plan_id=3, parents=[neighbour("a", True)], children=[neighbour("b", False)], fallbacks=[neighbour("c", True)]
    )
    a, b, c = (Neighbour(PeerId(name), "peer", f"{name}:1", name != "b") for name in "abc")
    assert plan_of(plan) == PlanChanged(PlanId(3), (a,), (b,), (c,))


def test_an_accusation_names_the_chunk() -> None:
    accusation = accusation_of(Accuse(PeerId("a"), Version(7), ChunkIndex(4), "wrong"))
    assert accusation == pb.Accusation(culprit_peer_id="a", version=7, chunk_index=4, reason="wrong")
