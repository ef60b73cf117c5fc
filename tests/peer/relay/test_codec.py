from __future__ import annotations

import pytest

from peer.links.neighbours import EncodingKey, Neighbour
from peer.relay.codec import Message, event_of, key_of, message_of, plan_of
from peer.relay.core.state.actions import SendCancel, SendCredit, SendDecline, SendGot, SendHave, SendRequest, SendWant
from peer.relay.core.state.events import (
    CancelReceived,
    CreditReceived,
    DeclineReceived,
    Event,
    GotReceived,
    HaveReceived,
    LinkId,
    PlanChanged,
    RequestReceived,
    Stripe,
    WantReceived,
)
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import EncodingId, PeerId, PlanId, StripeId, Version
from rollcast.wire.proto import rollcast_pb2 as pb

KEY = EncodingKey(Version(7), EncodingId(2))
HERE, THERE = LinkId(1), LinkId(9)


@pytest.mark.parametrize(
    ("action", "event"),
    [
        (SendWant(HERE, KEY, False), WantReceived(THERE, KEY, False)),
        (SendWant(HERE, KEY, True), WantReceived(THERE, KEY, True)),
        (SendRequest(HERE, KEY, (3, 1, 200_000)), RequestReceived(THERE, KEY, (3, 1, 200_000))),
        (SendHave(HERE, KEY, 9, b"\x80\x80", False), HaveReceived(THERE, KEY, 9, b"\x80\x80", False)),
        (SendHave(HERE, KEY, 9, b"", True), HaveReceived(THERE, KEY, 9, b"", True)),
        (SendCredit(HERE, KEY, (5, 0)), CreditReceived(THERE, KEY, (5, 0))),
        (SendGot(HERE, KEY, (5, 0)), GotReceived(THERE, KEY, (5, 0))),
        (SendDecline(HERE, KEY, (5, 0)), DeclineReceived(THERE, KEY, (5, 0))),
        (SendCancel(HERE, KEY, "why"), CancelReceived(THERE, KEY, "why")),
    ],
)
def test_a_message_is_decoded_as_it_was_encoded(action: Message, event: Event) -> None:
    assert event_of(THERE, pb.LinkMessage.FromString(message_of(action).SerializeToString())) == event


@pytest.mark.parametrize(
    "message",
    [
        pb.LinkMessage(chunk_list=pb.ChunkList(version=7)),
        pb.LinkMessage(held=pb.VersionHeld(version=7)),
        pb.LinkMessage(padding=pb.Padding(zeros=b"\0")),
        pb.LinkMessage(),
    ],
)
def test_messages_for_the_shell_and_unknown_ones_are_no_events(message: pb.LinkMessage) -> None:
    assert event_of(THERE, message) is None


def test_messages_name_their_encoding() -> None:
    assert key_of(pb.ChunkList(version=7, encoding_id=2)) == KEY


def plan(**fields: object) -> pb.RelayPlan:
    neighbours = [
        pb.PlanNeighbour(peer_id="a", role="origin", address="a:1", we_dial=True),
        pb.PlanNeighbour(peer_id="b", role="peer", lan=True),
    ]
    return pb.RelayPlan(plan_id=3, neighbours=neighbours, **fields)  # type: ignore[arg-type]


def test_the_coordinators_plan_names_neighbours_by_their_place() -> None:
    a = Neighbour(PeerId("a"), "origin", "a:1", True)
    b = Neighbour(PeerId("b"), "peer", "", False, lan=True)
    c = Neighbour(PeerId("c"), "peer", "c:1", True)
    planned = plan(
        stripes=[pb.PlanStripe(stripe=4, children=[1], bytes_per_second=2.5, relays=1), pb.PlanStripe(stripe=5)],
        list_children=[1],
        parents=[0, 1],
        fallbacks=[pb.PlanNeighbour(peer_id="c", role="peer", address="c:1", we_dial=True)],
        direct_copies=True,
    )
    assert plan_of(planned) == PlanChanged(
        PlanId(3),
        neighbours=(a, b),
        stripes=(Stripe(StripeId(4), (b.peer_id,), 2.5, relays=1), Stripe(StripeId(5), ())),
        list_children=(b.peer_id,),
        parents=(a.peer_id, b.peer_id),
        fallbacks=(c,),
        direct_copies=True,
    )


def test_a_plan_names_heirs_and_what_they_adopt() -> None:
    heir = pb.PlanHeir(child=0, heir=1)
    found = plan_of(plan(stripes=[pb.PlanStripe(stripe=4, children=[0], heirs=[heir], adopted=[1], guardian=0)]))
    a, b = PeerId("a"), PeerId("b")
    assert found.stripes == (Stripe(StripeId(4), (a,), heirs=((a, b),), adopted=(b,), guardian=a),)


@pytest.mark.parametrize(
    "fields",
    [
        {"stripes": [pb.PlanStripe(stripe=4, children=[2])]},
        {"stripes": [pb.PlanStripe(stripe=4, heirs=[pb.PlanHeir(child=0, heir=2)])]},
        {"stripes": [pb.PlanStripe(stripe=4, adopted=[1], guardian=2)]},
        {"stripes": [pb.PlanStripe(stripe=0)]},
        {"stripes": [pb.PlanStripe(stripe=0xFFFF)]},
        {"list_children": [2]},
        {"parents": [7]},
    ],
)
def test_an_impossible_plan_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage):
        plan_of(plan(**fields))
