"""Set up a libp2p host for a peer: TCP, noise and yamux, and none of libp2p's own initiatives (trio).

Otherwise py-libp2p 0.8 would accept plaintext (and believe any claim about the key), dial every peer that it
hears of, and refuse connections once 80 % of the memory is in use, as in a process with a model in it.
"""

from __future__ import annotations

import logging
from typing import Any

import libp2p
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.tcp.tcp import TCP

from peer.p2p.streams.lanes import close_quietly
from peer.p2p.streams.limits import HostLimits
from peer.p2p.streams.resources import Resources, give_back_what_fails
from peer.p2p.streams.yamux import YamuxNegotiation
from rollcast.wire.identity.identity import Identity

_NEVER_S = 1e9
_CLOSING_S = 5.0
_LOG = logging.getLogger(__name__)
# libp2p logs every broken connection as a warning with a stack trace; this package logs what matters of it.
_LOG_LEVEL = logging.CRITICAL


def make_host(identity: Identity, limits: HostLimits) -> Any:
    """Return a host that is not running yet and proves this identity."""
    for name in ("libp2p", "multiaddr", "async_service"):
        logging.getLogger(name).setLevel(_LOG_LEVEL)
    key_pair = create_new_key_pair(seed=identity.seed())
    noise_key = create_new_x25519_key_pair().private_key
    # A link is two connections, and a link that is being replaced stays open beside its successor for a while.
    connections_most = 4 * limits.links_most
    host = libp2p.new_host(
        key_pair=key_pair,
        sec_opt={NOISE: NoiseTransport(key_pair, noise_privkey=noise_key)},
        muxer_opt={YAMUX: Yamux},
        transports=[TCP()],
        resource_manager=Resources(connections_most),
        connection_config=ConnectionConfig(
            max_connections=connections_most,
            high_watermark=connections_most,
            low_watermark=0,
            min_connections=0,
            max_connections_per_peer=8,
            auto_connect_interval=_NEVER_S,
            dial_timeout=limits.opening_timeout_s,
            inbound_upgrade_timeout=limits.opening_timeout_s,
            outbound_upgrade_timeout=limits.opening_timeout_s,
        ),
    )
    network = host.get_network()
    network.upgrader.muxer_multistream = YamuxNegotiation(limits.opening_timeout_s)
    network.retry_config = RetryConfig(max_retries=0)  # the relay decides when to dial again
    give_back_what_fails(network)
    network._do_handle_inbound_connection = _Inbound(network).serve
    # The connector aims at the middle between the watermarks, whatever the minimum, and dials after every disconnect.
    network.auto_connector.maybe_connect = _dial_no_peer
    _remember_itself(host)
    return host


async def close_connections(host: Any) -> None:
    """Close all connections of a host, in bounded time, also while being cancelled."""
    async with trio.open_nursery() as closing:
        for connection in list(host.get_network().get_connections()):
            closing.start_soon(close_quietly, connection.close)


class _Inbound:
    """Accepted connections. libp2p would keep the task of each, and count it against the limit, until the host ends."""

    def __init__(self, network: Any) -> None:
        self._network = network

    async def serve(self, stream: Any, address: Any, _failure: Any) -> None:
        """Upgrade an accepted stream to a connection, and wait for its end."""
        raw = RawConnection(stream, False)
        try:
            muxed = await self._network.upgrade_inbound_raw_conn(raw, address)
            await muxed.event_shutting_down.wait()
            with trio.move_on_after(_CLOSING_S):
                await muxed.event_closed.wait()
        except Exception as error:
            _LOG.debug("an accepted connection failed: %s", error)
        finally:
            with trio.CancelScope(deadline=trio.current_time() + _CLOSING_S, shield=True):
                await raw.close()


async def _dial_no_peer() -> None:
    pass


def _remember_itself(host: Any) -> None:
    """Keep the host itself among the peers that libp2p remembers.

    Beyond 1000 peers libp2p discards the one it has known longest: the host itself, with the keys that every answer to
    a new connection needs.
    """
    known, own_id = host.get_peerstore(), host.get_id()
    own, forget = known.peer_data_map[own_id], known._enforce_peer_limit

    def forget_others() -> None:
        forget()
        known.peer_data_map.setdefault(own_id, own)

    known._enforce_peer_limit = forget_others
