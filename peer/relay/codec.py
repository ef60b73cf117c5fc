"""Translate the relay's actions to link messages, and link messages to its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from peer.links.neighbours import MIRROR_ROLE, EncodingKey, Neighbour
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
from rollcast.wire.limits import STRIPES_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

_PLAN_ROLES = frozenset({"peer", "origin", MIRROR_ROLE})  # files of this disk are named by its own configuration alone

Message = SendWant | SendRequest | SendHave | SendCredit | SendGot | SendDecline | SendCancel


def message_of(action: Message) -> pb.LinkMessage:
    """Return the message of an action that needs no data from the store."""
    version, encoding_id = action.key.version, action.key.encoding_id
    match action:
        case SendWant(chunk_list=chunk_list, announcement=announcement):
            body = pb.Want(version=version, encoding_id=encoding_id, chunk_list=chunk_list, announcement=announcement)
            return pb.LinkMessage(want=body)
        case SendRequest(indices=indices):
            return pb.LinkMessage(request=pb.Request(version=version, encoding_id=encoding_id, indices=indices))
        case SendHave(chunk_count=count, bitmap=bitmap, complete=complete):
            have = pb.Have(
                version=version, encoding_id=encoding_id, chunk_count=count, bitmap=bitmap, complete=complete
            )
            return pb.LinkMessage(have=have)
        case SendCredit(indices=indices):
            return pb.LinkMessage(credit=pb.Credit(version=version, encoding_id=encoding_id, indices=indices))
        case SendGot(indices=indices):
            return pb.LinkMessage(got=pb.Got(version=version, encoding_id=encoding_id, indices=indices))
        case SendDecline(indices=indices):
            return pb.LinkMessage(decline=pb.Decline(version=version, encoding_id=encoding_id, indices=indices))
        case SendCancel(reason=reason):
            return pb.LinkMessage(cancel=pb.Cancel(version=version, encoding_id=encoding_id, reason=reason))


def event_of(link: LinkId, message: pb.LinkMessage) -> Event | None:
    """Return the event of a message; None for messages that the shell handles, and for unknown ones."""
    match message.WhichOneof("body"):
        case "want":
            want = message.want
            return WantReceived(link, key_of(want), want.chunk_list, want.announcement)
        case "request":
            return RequestReceived(link, key_of(message.request), tuple(message.request.indices))
        case "have":
            have = message.have
            return HaveReceived(link, key_of(have), have.chunk_count, have.bitmap, have.complete)
        case "credit":
            return CreditReceived(link, key_of(message.credit), tuple(message.credit.indices))
        case "got":
            return GotReceived(link, key_of(message.got), tuple(message.got.indices))
        case "decline":
            return DeclineReceived(link, key_of(message.decline), tuple(message.decline.indices))
        case "cancel":
            return CancelReceived(link, key_of(message.cancel), message.cancel.reason)
    return None


def plan_of(plan: pb.RelayPlan) -> PlanChanged:
    """Return the event of a plan that the coordinator sent.

    Raises:
        MalformedMessage: it names a neighbour or a stripe that does not exist.
    """
    neighbours = tuple(_neighbour(neighbour) for neighbour in plan.neighbours)
    return PlanChanged(
        PlanId(plan.plan_id),
        neighbours,
        tuple(_stripe(stripe, neighbours) for stripe in plan.stripes),
        _peers(plan.list_children, neighbours),
        _peers(plan.parents, neighbours),
        tuple(_neighbour(neighbour) for neighbour in plan.fallbacks),
        plan.direct_copies,
    )


def key_of(
    message: pb.Want
    | pb.Request
    | pb.Have
    | pb.Credit
    | pb.Got
    | pb.Decline
    | pb.Cancel
    | pb.ChunkList
    | pb.ReceiptRequest,
) -> EncodingKey:
    """Return the encoding that a message names."""
    return EncodingKey(Version(message.version), EncodingId(message.encoding_id))


def _neighbour(neighbour: pb.PlanNeighbour) -> Neighbour:
    if neighbour.role not in _PLAN_ROLES:
        raise MalformedMessage(f"a relay plan with a neighbour of role {neighbour.role[:32]!r}")
    peer_id = PeerId(neighbour.peer_id)
    return Neighbour(peer_id, neighbour.role, neighbour.address, neighbour.we_dial, neighbour.lan)


def _stripe(stripe: pb.PlanStripe, neighbours: Sequence[Neighbour]) -> Stripe:
    if not 1 <= stripe.stripe <= STRIPES_MAX:
        raise MalformedMessage(f"a relay plan with stripe {stripe.stripe}")
    children = _peers([one.child for one in stripe.heirs], neighbours)
    heirs = _peers([one.heir for one in stripe.heirs], neighbours)
    adopted = _peers(stripe.adopted, neighbours)
    return Stripe(
        StripeId(stripe.stripe),
        _peers(stripe.children, neighbours),
        stripe.bytes_per_second,
        tuple(zip(children, heirs, strict=True)),
        adopted,
        _peers((stripe.guardian,), neighbours)[0] if adopted else None,
        stripe.relays,
    )


def _peers(indices: Iterable[int], neighbours: Sequence[Neighbour]) -> tuple[PeerId, ...]:
    chosen = tuple(indices)
    if any(index >= len(neighbours) for index in chosen):
        raise MalformedMessage("a relay plan that names a neighbour it does not have")
    return tuple(neighbours[index].peer_id for index in chosen)
