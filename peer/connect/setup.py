"""Build the connectivity components that a peer's configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

from peer.config import PeerConfig
from peer.connect.bans import Bans
from peer.connect.connectivity import ConnectivityComponent
from peer.discovery.address_book import AddressBook
from peer.discovery.book_file import BookFile
from peer.discovery.exchange import Exchange
from peer.discovery.mdns import Mdns
from peer.discovery.mdns_record import Nearby
from peer.discovery.offline import OfflineWatch
from peer.discovery.own_record import OwnRecord, own_addresses
from peer.p2p.circuits_component import CircuitsComponent
from peer.p2p.dht_component import SEEDS_MOST, DhtComponent
from peer.p2p.transport import P2pTransport
from peer.port_map.component import PortMapping
from peer.port_map.routers import pcp_nonce, routers_for
from peer.punching.component import PunchComponent
from peer.punching.transport import PunchTransport
from peer.reachability.advertised import AdvertisedReachability
from peer.reachability.checking import ReachabilityCheck
from peer.reachability.local_address import LocalAddress
from peer.reachability.nat_probe import MemberHttp, seen_from_outside
from peer.reachability.summary import ReachabilitySummary
from peer.relay.relay import Relay
from peer.startup import RunMembership
from rollcast.runtime.process import is_loopback
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.proto import rollcast_pb2 as pb


@dataclass(frozen=True, slots=True)
class ConnectivityContext:
    """The objects from which connectivity components are built.

    Args:
        place: identity, and the enrolment with the run, the coordinator's addresses and the run CA.
        reachability: reports to the coordinator how this peer can be reached.
        send: queues a message in the session; it is dropped while no session is open.
        credentials: returns the newest credentials; they are renewed while the process runs.
        http_url: returns the coordinator's HTTP address, at the host where it was found last.
        advertised: returns what others dial, as configured at startup: host:port and the libp2p address, separated by a
            space; empty: this peer cannot be dialled.
        summary: findings about how this machine is reached, for the owner's screens.
    """

    config: PeerConfig
    place: RunMembership
    relay: Relay
    reachability: AdvertisedReachability
    send: Callable[[pb.PeerMessage], None]
    credentials: Callable[[], TlsCredentials]
    http_url: Callable[[], str]
    advertised: Callable[[], str]
    summary: ReachabilitySummary


def connectivity_components(context: ConnectivityContext) -> list[ConnectivityComponent]:
    """Build all connectivity components of one peer. Call it inside a running event loop."""
    exchange = _exchange(context)
    context.relay.watcher = exchange
    components: list[ConnectivityComponent] = [
        context.reachability,
        _checking(context),
        exchange,
        OfflineWatch(context.relay),
    ]
    components.append(Bans(context.relay.keep_out, exchange.keep_out))
    if not is_loopback(context.config.link.host):
        components.append(_local_address(context))
    if context.config.link.map_port:
        components.append(_port_mapping(context))
    if context.config.link.mdns:
        components.append(_mdns(context, exchange))
    if context.relay.transports.punched is not None:
        components.append(_punching(context, context.relay.transports.punched))
    if context.relay.transports.p2p is not None and context.config.link.dht:
        components.append(_dht(context, context.relay.transports.p2p, exchange))
    if context.relay.transports.p2p is not None:
        own_id = context.place.identity.peer_id
        components.append(
            CircuitsComponent(context.relay.transports.p2p, context.reachability, own_id, context.advertised)
        )
    return components


def _port_mapping(context: ConnectivityContext) -> PortMapping:
    link = context.config.link
    routers = routers_for(link, pcp_nonce(context.place.identity))
    return PortMapping(link, context.reachability.set_advertise, random=Random(), routers=routers)


def _dht(context: ConnectivityContext, transport: P2pTransport, exchange: Exchange) -> DhtComponent:
    return DhtComponent(
        transport,
        context.config.link.dht_seeds,
        known=lambda: exchange.known(SEEDS_MOST),
        own=lambda: own_addresses(context.advertised(), context.reachability.now, context.summary.verdict),
        found=exchange.hinted,
    )


def _local_address(context: ConnectivityContext) -> LocalAddress:
    transports = context.relay.transports
    return LocalAddress(
        context.config.link.host,
        lambda: transports.link_port,
        context.reachability,
        lambda: urlsplit(context.http_url()).hostname or "",
    )


def _mdns(context: ConnectivityContext, exchange: Exchange) -> Mdns:
    config, enrolment, transports = context.config, context.place.enrolment, context.relay.transports

    def found(near: Nearby) -> None:
        exchange.found_nearby(near.peer_id, near.role, near.addresses)

    return Mdns(
        context.place.identity.peer_id,
        config.role,
        enrolment.run_id,
        host=config.link.host,
        port=lambda: transports.link_port,
        found=found,
    )


def _punching(context: ConnectivityContext, transport: PunchTransport) -> PunchComponent:
    http = MemberHttp(context.place.identity, context.place.enrolment, http_url=context.http_url)
    # The address that a coordinator sees over loopback says nothing about this machine's router.
    is_here = is_loopback(urlsplit(context.http_url()).hostname or "")
    return PunchComponent(
        transport, context.reachability, context.send, None if is_here else http.options, Random(), context.relay.policy
    )


def _checking(context: ConnectivityContext) -> ReachabilityCheck:
    http = MemberHttp(context.place.identity, context.place.enrolment, http_url=context.http_url)
    return ReachabilityCheck(
        lambda: seen_from_outside(http),
        summary=context.summary,
        reachability=context.reachability,
        send=context.send,
        credentials=context.credentials,
        run_id=context.place.enrolment.run_id,
        random=Random(),
        policy=context.relay.policy,
    )


def _exchange(context: ConnectivityContext) -> Exchange:
    identity, run_id = context.place.identity, context.place.enrolment.run_id
    return Exchange(
        OwnRecord(identity, run_id, context.config.role),
        AddressBook(identity.peer_id),
        BookFile(context.config.state_folder / "peer-records.pb", run_id),
        context.relay,
        run_id=run_id,
        learn=lambda peer_id, addresses: context.relay.transports.paths.learn(peer_id, addresses),
        addresses=lambda: own_addresses(context.advertised(), context.reachability.now, context.summary.verdict),
        send=context.send,
        random=Random(),
    )
