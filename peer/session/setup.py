"""Set up a peer's session: the coordinator's addresses, the time limits and the certificate to use."""

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
"""Seconds for one attempt to join again, once the certificate has expired."""


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
    """Return the session of a peer; the caller runs it.

    Args:
        renewal: returns the holder of the newest credentials. It is a function because the renewal sends through the
            session, and so is created after it.
    """
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
    """Return the coordinator's HTTP address at the host whose control port is ``grpc_address``."""
    places = place.invite.places(config.coordinators)
    found = (one.http_url for one in places if one.grpc_address == grpc_address)
    return next(found, place.enrolment.http_url)  # a control port that only the coordinator itself has named


async def _join_again(config: PeerConfig, place: RunMembership, renewal: Renewal) -> None:
    """Join again with the invite if the certificate has expired while the coordinator was unreachable.

    Raises:
        RollcastError: joining failed (rollcast.wire.joining.enrol).
    """
    if renewal.credentials.valid_for_s > 0.0:
        return
    again = await enrol(place.invite, place.identity, config.state_folder, REJOIN_TIMEOUT_S, also=config.coordinators)
    renewal.replace(again.credentials)


async def _failed_hop(address: str, credentials: TlsCredentials) -> HopFailed | None:
    if credentials.valid_for_s > 0.0:
        return await failed_hop(address, credentials.ssl_client_context(), reads_first=True)
    reason = "this peer's certificate has expired, and the HTTP port that issues new ones could not be reached"
    return await failed_hop(address, None) or HopFailed("certificate", address, reason)
