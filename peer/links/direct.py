"""The default transport: aiohttp over mutual TLS 1.3, dialled directly."""

from __future__ import annotations

from peer.config import LinkConfig
from peer.links.server import LinkServer
from peer.links.stream_link import StreamLink
from peer.links.traffic import LinkTraffic
from peer.links.transport import Admission, Link, LinkHandler
from rollcast.runtime.errors import ConfigError
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.links.dialler import LinkDialler
from rollcast.wire.links.handshake import LinkLimits
from rollcast.wire.links.tcp import SocketOptions, check_congestion_control

_ANY_ADDRESS = ("", "0.0.0.0", "::")


def socket_options(config: LinkConfig, limits: LinkLimits) -> SocketOptions:
    """Return the options of links' sockets that the configuration asks for."""
    return SocketOptions(
        silence_timeout_s=limits.silence_timeout_s,
        congestion_control=config.congestion,
        pacing_bytes_per_second=int(config.pacing_mbit_s * 1e6 / 8),
    )


class DirectTransport:
    """See peer.links.transport.ChunkTransport. Make it inside a running event loop.

    Args:
        traffic: the traffic of all links of the process.
    """

    def __init__(
        self,
        config: LinkConfig,
        credentials: TlsCredentials,
        run_id: RunId,
        admit: Admission,
        limits: LinkLimits | None = None,
        traffic: LinkTraffic | None = None,
    ) -> None:
        limits = limits or LinkLimits()
        options = socket_options(config, limits)
        self.port = 0
        """The port that is listened on; 0 before ``start``."""
        self.traffic = traffic or LinkTraffic(config)
        self._config = config
        self._server = LinkServer(credentials, run_id, admit, limits=limits, options=options, traffic=self.traffic)
        self._dialler = LinkDialler(credentials, run_id, limits, options)

    async def start(self, on_link: LinkHandler) -> str:
        config = self._config
        check_congestion_control(config.congestion)
        unknown = config.host in _ANY_ADDRESS and not config.advertise
        if unknown and not config.map_port:
            raise ConfigError(
                "the address that other peers should dial is not known",
                cause=f"link.host {config.host!r} means every interface, and link.advertise is empty",
                fix='set link.advertise to host:port as other peers see this machine, or to "none"',
            )
        self.port = await self._server.start(config.host, config.port, on_link)
        if config.advertise == "none" or unknown:  # a mapped port's address comes from the router later
            return ""
        host = f"[{config.host}]" if ":" in config.host else config.host
        return config.advertise or f"{host}:{self.port}"

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        stream, caller = await self._dialler.dial(peer_id, address)
        return StreamLink(stream, caller, self.traffic.of(stream.remote_address), dialled=True)

    def renew(self, credentials: TlsCredentials) -> None:
        self._server.renew(credentials)
        self._dialler.renew(credentials)

    async def close(self) -> None:
        await self._server.close()
        await self._dialler.close()
