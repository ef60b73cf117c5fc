"""Which parts see to it that a peer is found and reached, as its configuration wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

from peer.config import PeerConfig
from peer.connect.bans import Banned
from peer.connect.connectivity import MeetingPart
from peer.discovery.address_book import AddressBook
from peer.discovery.book_file import BookFile
from peer.discovery.exchange import Exchange
from peer.discovery.mdns import Mdns
from peer.discovery.mdns_record import Nearby
from peer.discovery.offline import GoingOn
from peer.discovery.own_record import OwnRecord, own_addresses
from peer.p2p.circuits_component import CircuitsPart
from peer.p2p.dht_component import SEEDS_MOST, DhtPart
from peer.p2p.transport import P2pTransport
from peer.port_map.component import PortMapping
from peer.punching.component import PunchPart
from peer.punching.transport import PunchTransport
from peer.reachability.advertised import Reached
from peer.reachability.checking import Checking
from peer.reachability.coordinator_http import MemberDoor
from peer.reachability.local_address import LocalAddress
from peer.reachability.nat_probe import seen_from_outside
from peer.reachability.summary import Standing
from peer.relay.relay import Relay
from peer.startup import Place
from rollcast.runtime.process import is_loopback
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.proto import rollcast_pb2 as pb


@dataclass(frozen=True, slots=True)
class Around:
    """What parts work with.

    Args:
        place: identity, and the enrolment with the run, the coordinator's addresses and the run CA.
        reached: tells the coordinator how we can be reached.
        send: into the session; lost while there is none.
        credentials: the newest; they are renewed while the process runs.
        http_url: of the coordinator, at the place where it was found last.
        advertised: what others dial, as said at the start: host:port and libp2p's; empty: we cannot be dialled.
        standing: what was found out about how we are reached; for the owner's screens.
    """

    config: PeerConfig
    place: Place
    relay: Relay
    reached: Reached
    send: Callable[[pb.PeerMessage], None]
    credentials: Callable[[], TlsCredentials]
    http_url: Callable[[], str]
    advertised: Callable[[], str]
    standing: Standing


def parts_of(around: Around) -> list[MeetingPart]:
    """All parts of one peer. Call it inside a running event loop."""
    exchange = _exchange(around)
    around.relay.watcher = exchange
    parts: list[MeetingPart] = [around.reached, _checking(around), exchange, GoingOn(around.relay)]
    parts.append(Banned(around.relay.keep_out, exchange.keep_out))
    if not is_loopback(around.config.link.host):
        parts.append(_local_address(around))
    if around.config.link.map_port:
        parts.append(PortMapping(around.config.link, around.reached.set_advertise, random=Random()))
    if around.config.link.mdns:
        parts.append(_mdns(around, exchange))
    if around.relay.transports.punched is not None:
        parts.append(_punching(around, around.relay.transports.punched))
    if around.relay.transports.p2p is not None and around.config.link.dht:
        parts.append(_dht(around, around.relay.transports.p2p, exchange))
    if around.relay.transports.p2p is not None:
        own_id = around.place.identity.peer_id
        parts.append(CircuitsPart(around.relay.transports.p2p, around.reached, own_id, around.advertised))
    return parts


def _dht(around: Around, transport: P2pTransport, exchange: Exchange) -> DhtPart:
    return DhtPart(
        transport,
        around.config.link.dht_seeds,
        known=lambda: exchange.known(SEEDS_MOST),
        own=lambda: own_addresses(around.advertised(), around.reached.now, around.standing.verdict),
        found=exchange.hinted,
    )


def _local_address(around: Around) -> LocalAddress:
    transports = around.relay.transports
    return LocalAddress(
        around.config.link.host,
        lambda: transports.link_port,
        around.reached,
        lambda: urlsplit(around.http_url()).hostname or "",
    )


def _mdns(around: Around, exchange: Exchange) -> Mdns:
    config, enrolment, transports = around.config, around.place.enrolment, around.relay.transports

    def found(near: Nearby) -> None:
        exchange.found_nearby(near.peer_id, near.role, near.addresses)

    return Mdns(
        around.place.identity.peer_id,
        config.role,
        enrolment.run_id,
        host=config.link.host,
        port=lambda: transports.link_port,
        found=found,
    )


def _punching(around: Around, transport: PunchTransport) -> PunchPart:
    door = MemberDoor(around.place.identity, around.place.enrolment, http_url=around.http_url)
    is_here = is_loopback(urlsplit(around.http_url()).hostname or "")
    return PunchPart(transport, around.reached, around.send, None if is_here else door.options, Random())


def _checking(around: Around) -> Checking:
    door = MemberDoor(around.place.identity, around.place.enrolment, http_url=around.http_url)
    return Checking(
        lambda: seen_from_outside(door),
        standing=around.standing,
        reached=around.reached,
        send=around.send,
        credentials=around.credentials,
        run_id=around.place.enrolment.run_id,
        random=Random(),
    )


def _exchange(around: Around) -> Exchange:
    identity, run_id = around.place.identity, around.place.enrolment.run_id
    return Exchange(
        OwnRecord(identity, run_id, around.config.role),
        AddressBook(identity.peer_id),
        BookFile(around.config.state_folder / "peer-records.pb", run_id),
        around.relay,
        run_id=run_id,
        learn=lambda peer_id, addresses: around.relay.transports.paths.learn(peer_id, addresses),
        addresses=lambda: own_addresses(around.advertised(), around.reached.now, around.standing.verdict),
        send=around.send,
        random=Random(),
    )
