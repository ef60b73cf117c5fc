"""All the ways to a chunk link behind one interface, chosen by the form of the address."""

from __future__ import annotations

from peer.mirror_transport import MirrorTransport
from peer.transport import ChunkTransport, Link, LinkHandler
from rollcast.wire.ids import PeerId
from rollcast.wire.tls import TlsCredentials


class Transports:
    """See peer.transport.ChunkTransport.

    Args:
        direct: accepts links, and dials host:port.
        mirrors: dials everything else.
    """

    def __init__(self, direct: ChunkTransport, mirrors: MirrorTransport) -> None:
        self._direct = direct
        self._mirrors = mirrors

    async def start(self, on_link: LinkHandler) -> str:
        return await self._direct.start(on_link)

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        if "/" in address:  # never in host:port, always in https://host/prefix or a path
            return await self._mirrors.dial(peer_id, address)
        return await self._direct.dial(peer_id, address)

    def renew(self, credentials: TlsCredentials) -> None:
        self._direct.renew(credentials)

    async def close(self) -> None:
        await self._mirrors.close()
        await self._direct.close()
