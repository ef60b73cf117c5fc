"""The default transport: aiohttp over mutual TLS 1.3, dialled directly."""

from __future__ import annotations

from peer.config import LinkConfig
from peer.link_client import LinkClient
from peer.link_server import LinkServer
from peer.transport import Admission, Link, LinkHandler, LinkLimits
from rollcast.runtime.errors import ConfigError
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.tls import TlsCredentials

_ANY_ADDRESS = ("", "0.0.0.0", "::")


class DirectTransport:
    """See peer.transport.ChunkTransport. Make it inside a running event loop."""

    def __init__(
        self,
        config: LinkConfig,
        credentials: TlsCredentials,
        run_id: RunId,
        admit: Admission,
        limits: LinkLimits | None = None,
    ) -> None:
        limits = limits or LinkLimits()
        self._config = config
        self._server = LinkServer(credentials, run_id, limits, admit)
        self._client = LinkClient(credentials, run_id, limits)

    async def start(self, on_link: LinkHandler) -> str:
        config = self._config
        if config.host in _ANY_ADDRESS and not config.advertise:
            raise ConfigError(
                "others cannot tell which address to dial",
                cause=f"link.host {config.host!r} means every interface, and link.advertise is empty",
                fix='set link.advertise to host:port as others see this machine, or to "none"',
            )
        port = await self._server.start(config.host, config.port, on_link)
        if config.advertise == "none":
            return ""
        host = f"[{config.host}]" if ":" in config.host else config.host
        return config.advertise or f"{host}:{port}"

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        return await self._client.dial(peer_id, address)

    def renew(self, credentials: TlsCredentials) -> None:
        self._server.renew(credentials)
        self._client.renew(credentials)

    async def close(self) -> None:
        await self._server.close()
        await self._client.close()
