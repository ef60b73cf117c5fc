"""How a peer calls its run's coordinator: at which addresses, for how long, with which certificate."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from peer.config import PeerConfig
from peer.session.renewal import Renewal
from peer.session.session import Session, SessionListener, SessionSettings
from peer.startup import RunMembership
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.joining.diagnose import HopFailed, failed_hop
from rollcast.wire.joining.enrol import enrol
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.proto import rollcast_pb2 as pb

REJOIN_TIMEOUT_S = 5.0
"""For one try to join again, once our certificate has ended."""


def session_of(
    config: PeerConfig,
    place: RunMembership,
    renewal: Callable[[], Renewal],
    *,
    hello: Callable[[], pb.Hello],
    heartbeat: Callable[[], pb.Heartbeat],
    listener: SessionListener,
    random: Random,
) -> Session:
    """The session of a peer, not running."""
    enrolment = place.enrolment
    settings = SessionSettings(
        run_id=enrolment.run_id,
        learner_public_key=enrolment.learner_public_key,
        addresses=enrolment.grpc_addresses,
        join_timeout_s=config.join_timeout_s,
        reconnect_timeout_s=config.reconnect_timeout_s,
    )

    async def make_ready() -> None:
        await _join_again(config, place, renewal())

    return Session(
        settings,
        open_channel=lambda address: open_channel(address, renewal().credentials),
        failed_hop=lambda address: _failed_hop(address, renewal().credentials),
        hello=hello,
        heartbeat=heartbeat,
        listener=listener,
        random=random,
        make_ready=make_ready,
    )


def http_url_of(config: PeerConfig, place: RunMembership, grpc_address: str) -> str:
    """The coordinator's HTTP port at the place whose control port is this one."""
    places = place.invite.places(config.coordinators)
    found = (one.http_url for one in places if one.grpc_address == grpc_address)
    return next(found, place.enrolment.http_url)  # the coordinator itself has named a control port of another name


async def _join_again(config: PeerConfig, place: RunMembership, renewal: Renewal) -> None:
    """A coordinator was away for longer than certificates last: nothing but the invite opens its door.

    Raises:
        RollcastError: see rollcast.wire.joining.enrol.
    """
    if renewal.credentials.valid_for_s > 0.0:
        return
    again = await enrol(place.invite, place.identity, config.state_folder, REJOIN_TIMEOUT_S, also=config.coordinators)
    renewal.replace(again.credentials)


async def _failed_hop(address: str, credentials: TlsCredentials) -> HopFailed | None:
    if credentials.valid_for_s > 0.0:
        return await failed_hop(address, credentials.ssl_client_context(), reads_first=True)
    said = "our certificate has ended, and the coordinator's HTTP port, which hands out new ones, was not reached"
    return await failed_hop(address, None) or HopFailed("certificate", address, said)
