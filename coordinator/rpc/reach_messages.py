"""Convert a peer's messages about reaching it to events, after checking their limits."""

from __future__ import annotations

from ipaddress import ip_address

from coordinator.core.events.reach_events import (
    DialBackEnded,
    PunchEnded,
    PunchRequested,
    ReachabilityTold,
    ReachEvent,
    RecordGiven,
)
from coordinator.core.reach.holes import NAT_KINDS
from coordinator.rpc.sanitise import counter, duration_s, text
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.identity.peer_record import read_record
from rollcast.wire.ids import PeerId
from rollcast.wire.joining.local_address import read_local_address
from rollcast.wire.proto import rollcast_pb2 as pb

ADDRESS_LENGTH_MAX = 512  # one libp2p address; a circuit's has about 200 characters
CIRCUITS_MAX = 4


def reach_event_of(peer_id: PeerId, message: pb.PeerMessage) -> ReachEvent | None:
    """Return the event of a message about reachability; None for all other messages.

    Raises:
        MalformedMessage: a value is out of bounds.
    """
    match message.WhichOneof("body"):
        case "reachability":
            return _reachability(peer_id, message.reachability)
        case "punch_request":
            return PunchRequested(peer_id, _peer(message.punch_request.peer_id))
        case "punch_outcome":
            outcome = message.punch_outcome
            return PunchEnded(peer_id, counter(outcome.punch_id), outcome.opened, duration_s(outcome.seconds))
        case "dial_back_outcome":
            found = message.dial_back_outcome
            return DialBackEnded(peer_id, counter(found.check_id), found.reached, text(found.problem))
        case "peer_records":
            records = message.peer_records.records
            if len(records) != 1 or records[0].ByteSize() > limits.PEER_RECORD_BYTES_MAX:
                raise MalformedMessage("a peer sends exactly one record, its own")
            if read_record(records[0]).peer_id != peer_id:
                raise MalformedMessage("the record belongs to another peer")
            return RecordGiven(peer_id, records[0].SerializeToString(deterministic=True))
        case _:
            return None


def _reachability(peer_id: PeerId, message: pb.Reachability) -> ReachabilityTold:
    if len(message.circuits) > CIRCUITS_MAX:
        raise MalformedMessage(f"a peer names at most {CIRCUITS_MAX} circuits")
    return ReachabilityTold(
        peer_id=peer_id,
        nat=message.nat if message.nat in ("", *NAT_KINDS) else "unknown",
        punch_address=_ip_and_port(message.punch_address, version=4),
        circuits=tuple(_p2p_address(one) for one in message.circuits),
        relay_address=_p2p_address(message.relay_address) if message.relay_address else "",
        advertise=text(message.advertise),
        local_address=read_local_address(message.local_address),  # empty if it is not a local address
        punch_address_ipv6=_ip_and_port(message.punch_address_ipv6, version=6),
    )


def _peer(peer_id: str) -> PeerId:
    if not 0 < len(peer_id) <= limits.PEER_ID_LENGTH_MAX:
        raise MalformedMessage("the message names no peer")
    return PeerId(text(peer_id))


def _ip_and_port(address: str, *, version: int) -> str:
    """Check an IP address of this version with a port; an empty text stays empty.

    Raises:
        MalformedMessage: the text is something else. Names are refused: they would make peers query name servers.
    """
    if not address:
        return ""
    host, colon, port = address[:64].rpartition(":")
    try:
        of_version = ip_address(host.strip("[]")).version == version
        in_range = of_version and colon == ":" and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    except ValueError:
        in_range = False
    if not in_range or len(address) > 64:
        raise MalformedMessage(f"the address to punch to is not an IPv{version} address with a port")
    return address


def _p2p_address(address: str) -> str:
    printable = address.isascii() and address.isprintable() and " " not in address
    if not address.startswith("/") or len(address) > ADDRESS_LENGTH_MAX or not printable:
        raise MalformedMessage("this is not a libp2p address")
    return address
