"""All the ways to a chunk link behind one interface, chosen by the form of the address."""

from __future__ import annotations

import asyncio

import structlog

from peer.config import LinkConfig
from peer.direct_transport import DirectTransport
from peer.link_traffic import LinkTraffic
from peer.mirror_transport import MirrorTransport
from peer.p2p.addresses import P2pAddress, is_p2p_address
from peer.p2p.transport import P2pTransport
from peer.paths import Paths, addresses_in
from peer.transport import Admission, ChunkTransport, Link, LinkHandler
from rollcast.runtime.errors import RollcastError, Unreachable
from rollcast.wire.identity import Identity
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.tls import TlsCredentials

log = structlog.get_logger()


class Transports:
    """See peer.transport.ChunkTransport.

    Args:
        direct: accepts links, and dials host:port.
        mirrors: dials everything else.
        p2p: accepts links, and dials addresses of libp2p hosts; None: this process has no libp2p.
    """

    def __init__(self, direct: ChunkTransport, mirrors: MirrorTransport, p2p: ChunkTransport | None = None) -> None:
        self._direct = direct
        self._mirrors = mirrors
        self._p2p = p2p
        self._paths = Paths()

    async def start(self, on_link: LinkHandler) -> str:
        address = await self._direct.start(on_link)
        if self._p2p is None:
            return address
        try:
            p2p_address = await self._p2p.start(on_link)
        except RollcastError as error:
            # What it is for, direct links cannot do; what they can do does not need it.
            log.error("libp2p does not run; direct links go on", code=error.code, reason=error.what)
            return address
        log.info("libp2p listens", address=p2p_address)
        return f"{address} {_seen_as(address, p2p_address)}" if address else ""

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        """See ChunkTransport. Of several addresses, separated by spaces, the first that answers."""
        loop = asyncio.get_running_loop()
        problem: RollcastError = Unreachable(f"{peer_id} has no address")
        for one in self._paths.order(peer_id, addresses_in(address), loop.time()):
            try:
                link = await self._dial(peer_id, one)
            except RollcastError as error:
                self._paths.failed(peer_id, one, loop.time())
                problem = error
            else:
                self._paths.opened(peer_id, one)
                return link
        raise problem

    async def _dial(self, peer_id: PeerId, address: str) -> Link:
        if is_p2p_address(address):
            if self._p2p is None:
                raise Unreachable(
                    f"cannot reach {peer_id} at {address}",
                    cause="this process runs no libp2p",
                    fix='pip install "rollcast[p2p]" and set link.p2p = true',
                )
            return await self._p2p.dial(peer_id, address)
        if "/" in address:  # never in host:port, always in https://host/prefix or a path
            return await self._mirrors.dial(peer_id, address)
        return await self._direct.dial(peer_id, address)

    def renew(self, credentials: TlsCredentials) -> None:
        self._direct.renew(credentials)
        if self._p2p is not None:
            self._p2p.renew(credentials)

    async def close(self) -> None:
        await self._mirrors.close()
        if self._p2p is not None:
            await self._p2p.close()
        await self._direct.close()


def _seen_as(address: str, p2p_address: str) -> str:
    """The address of our libp2p host under the name that direct links are dialled by: it may listen everywhere."""
    port = p2p_address.rpartition("/")[2]
    return str(P2pAddress.of(address.rpartition(":")[0].strip("[]"), int(port)))


def transports_of(
    config: LinkConfig,
    credentials: TlsCredentials,
    run_id: RunId,
    admit: Admission,
    mirrors: MirrorTransport,
    traffic: LinkTraffic,
    identity: Identity | None,
) -> Transports:
    """The transports of one process, as its configuration wants them. Call it inside a running event loop.

    Args:
        identity: whose certificate ``credentials`` has; None: no libp2p.

    Raises:
        MissingExtra: libp2p is wanted and not installed.
    """
    direct = DirectTransport(config, credentials, run_id, admit, traffic=traffic)
    if not config.p2p or identity is None:
        return Transports(direct, mirrors)
    p2p = P2pTransport(identity, credentials, run_id, admit, host=config.host, port=config.p2p_port, traffic=traffic)
    return Transports(direct, mirrors, p2p)
