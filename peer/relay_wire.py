"""The relay's events and actions as link messages, and back. Pure."""

from __future__ import annotations

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
from rollcast.wire.ids import EncodingId, PeerId, PlanId, Version
from rollcast.wire.proto import rollcast_pb2 as pb


def message_of(action: SendWant | SendHave | SendCredit | SendCancel) -> pb.LinkMessage:
    """What to send for an action that needs nothing from the store."""
    name = {"version": action.key.version, "encoding_id": action.key.encoding_id}
    match action:
        case SendWant():
            return pb.LinkMessage(want=pb.Want(**name))
        case SendHave(chunk_count=count, bitmap=bitmap, complete=complete):
            return pb.LinkMessage(have=pb.Have(**name, chunk_count=count, bitmap=bitmap, complete=complete))
        case SendCredit(chunks=chunks):
            return pb.LinkMessage(credit=pb.Credit(**name, chunks=chunks))
        case SendCancel(reason=reason):
            return pb.LinkMessage(cancel=pb.Cancel(**name, reason=reason))


def event_of(link: LinkId, message: pb.LinkMessage) -> Event | None:
    """What a message means to the core; None for those that the shell must look into, and for unknown ones."""
    match message.WhichOneof("body"):
        case "want":
            return WantReceived(link, _key(message.want))
        case "have":
            have = message.have
            return HaveReceived(link, _key(have), have.chunk_count, have.bitmap, have.complete)
        case "credit":
            return CreditReceived(link, _key(message.credit), message.credit.chunks)
        case "cancel":
            return CancelReceived(link, _key(message.cancel), message.cancel.reason)
        case "held":
            return HeldReceived(link, Version(message.held.version))
    return None


def plan_of(plan: pb.RelayPlan) -> PlanChanged:
    """The coordinator's plan."""
    return PlanChanged(
        PlanId(plan.plan_id),
        tuple(_neighbour(neighbour) for neighbour in plan.parents),
        tuple(_neighbour(neighbour) for neighbour in plan.children),
        tuple(_neighbour(neighbour) for neighbour in plan.fallbacks),
    )


def accusation_of(action: Accuse) -> pb.Accusation:
    """What to tell the coordinator about a peer that sent wrong bytes."""
    return pb.Accusation(
        culprit_peer_id=action.peer_id, version=action.version, chunk_index=action.index, reason=action.reason
    )


def key_of(message: pb.ChunkList) -> EncodingKey:
    """The encoding that a chunk list belongs to."""
    return _key(message)


def _neighbour(neighbour: pb.PlanNeighbour) -> Neighbour:
    return Neighbour(PeerId(neighbour.peer_id), neighbour.role, neighbour.address, neighbour.we_dial)


def _key(message: pb.Want | pb.Have | pb.Credit | pb.Cancel | pb.ChunkList) -> EncodingKey:
    return EncodingKey(Version(message.version), EncodingId(message.encoding_id))
