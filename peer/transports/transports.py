"""Dial and accept chunk links over every transport through one interface; the form of an address chooses one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import assert_never

import structlog

from peer.config import LinkConfig
from peer.links.addresses import P2pAddress
from peer.links.dial_policy import DialPolicy
from peer.links.direct import DirectTransport
from peer.links.gate import NetworkGate
from peer.links.neighbours import MIRROR_ROLES, Neighbour
from peer.links.paths import Kind, Paths, addresses_in, kind_of, kind_of_link
from peer.links.traffic import LinkTraffic
from peer.links.transport import Admission, ChunkTransport, Link, LinkHandler
from peer.mirrors.transport import MirrorTransport
from peer.p2p.circuits.book import CircuitCaps
from peer.p2p.transport import P2pTransport
from peer.punching.transport import PunchTransport
from rollcast.runtime.errors import RollcastError, Unreachable
from rollcast.runtime.install import install_command
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import PeerId, RunId

log = structlog.get_logger()

# Seconds after which the next address is dialled, if there is one: a hole opens at once or not at all, and a peer that
# needs a relay has one within 5 s.
_PATIENCE_S: dict[Kind, float] = {"punched": 3.0, "relayed": 2.0}
_PATIENCE_ELSE_S = 5.0


class Transports:
    """See peer.links.transport.ChunkTransport.

    Args:
        direct: accepts links, and dials host:port.
        mirrors: dials mirrors and public weights.
        p2p: accepts links, and dials addresses of libp2p hosts; None: this process runs no libp2p.
        punched: opens links through the NATs of both ends by dialling at the same time; None: this process does not.
        policy: decides which addresses are dialled at all.
    """

    def __init__(
        self,
        direct: ChunkTransport,
        mirrors: MirrorTransport,
        p2p: P2pTransport | None = None,
        punched: PunchTransport | None = None,
        *,
        policy: DialPolicy,
    ) -> None:
        self.policy = policy
        self._direct = direct
        self._mirrors = mirrors
        self.p2p = p2p
        self.punched = punched
        self.paths = Paths()
        """Failures and rates of each peer's addresses; components that learn further addresses add them here."""

    @property
    def link_port(self) -> int:
        """Return the port on which direct links are accepted; 0 before ``start``."""
        return self._direct.port if isinstance(self._direct, DirectTransport) else 0

    async def start(self, on_link: LinkHandler) -> str:
        address = await self._direct.start(on_link)
        if self.punched is not None:
            await self.punched.start(on_link)
        if self.p2p is None:
            return address
        try:
            p2p_address = await self.p2p.start(on_link)
        except RollcastError as error:
            # Direct links do not need libp2p, so the process continues without it.
            log.error("libp2p does not run; direct links continue", code=error.code, reason=error.what)
            return address
        log.info("libp2p listens", address=p2p_address)
        return f"{address} {_seen_as(address, p2p_address)}" if address else ""

    async def dial(self, peer_id: PeerId, address: str, role: str = "peer") -> Link:
        """See ChunkTransport. Several addresses are separated by spaces; the first that answers is used.

        Only a neighbour whose role is that of a mirror is dialled as one, whatever its address looks like.
        """
        if role in MIRROR_ROLES:
            if not self._mirrors.is_own(address):
                await self.policy.allow_mirror(address)
            return await self._mirrors.dial(peer_id, address)
        now = asyncio.get_running_loop().time()
        return await self.dial_first(peer_id, self.paths.order(peer_id, addresses_in(address), now))

    def better(self, link: Link, address: str) -> list[str]:
        """Return the addresses of its peer that would make a better link than this one; ``dial_first`` dials them.

        Args:
            address: as for ``dial``.
        """
        kind, now = kind_of_link(link.transport, link.lan), asyncio.get_running_loop().time()
        if kind == "mirror":
            return []
        return self.paths.better(link.peer_id, addresses_in(address), kind, now)

    async def dial_first(self, peer_id: PeerId, addresses: Sequence[str]) -> Link:
        """Return a link to the first of these addresses that answers; raises the errors of ``dial``."""
        problem: RollcastError = Unreachable(f"{peer_id} has no address")
        loop = asyncio.get_running_loop()
        for left, address in zip(range(len(addresses) - 1, -1, -1), addresses, strict=True):
            try:
                link = await self._dial_allowed(peer_id, address, last=not left)
            except RollcastError as error:
                self.paths.failed(peer_id, address, loop.time())
                problem = error
            else:
                self.paths.opened(peer_id, address)
                return link
        raise problem

    async def _dial_allowed(self, peer_id: PeerId, address: str, *, last: bool) -> Link:
        """Dial an address as far as the policy allows; of a name, each of its IP addresses."""
        allowed = await self.policy.allowed(peer_id, address)
        for one in allowed[:-1]:
            try:
                return await self._dial_in_time(peer_id, one, last=False)
            except RollcastError as error:
                log.debug("dial failed", peer=peer_id, address=one, reason=error.what)
        return await self._dial_in_time(peer_id, allowed[-1], last=last)

    async def _dial_in_time(self, peer_id: PeerId, address: str, *, last: bool) -> Link:
        kind = kind_of(address)
        if last and kind != "punched":  # there is no other to try: its own deadlines apply
            return await self._dial(peer_id, address, kind)
        async with deadline(_PATIENCE_S.get(kind, _PATIENCE_ELSE_S), f"a chunk link to {peer_id} at {address}"):
            return await self._dial(peer_id, address, kind)

    async def _dial(self, peer_id: PeerId, address: str, kind: Kind) -> Link:
        match kind:
            case "mirror":
                raise Unreachable(f"{address[:200]!r} is not the address of a peer")
            case "lan" | "direct":
                return await self._direct.dial(peer_id, address)
            case "punched":
                if self.punched is None:
                    raise Unreachable(
                        f"cannot punch a hole to {peer_id}",
                        cause="hole punching is off in this process",
                        fix="set link.punch = true",
                    )
                return await self.punched.dial(peer_id, address)
            case "p2p" | "relayed":
                if self.p2p is None:
                    raise Unreachable(
                        f"cannot reach {peer_id} at {address}",
                        cause="this process runs no libp2p",
                        fix=f"{install_command('p2p')}, and set link.p2p = true",
                    )
                return await self.p2p.dial(peer_id, address)
            case _:
                assert_never(kind)

    def expect(self, neighbours: Iterable[Neighbour]) -> None:
        """Replace the peers that the coordinator names as members."""
        neighbours = tuple(neighbours)
        self.policy.know_near("plan", (neighbour.peer_id for neighbour in neighbours if neighbour.lan))
        if self.p2p is not None:
            self.p2p.expect(neighbour.peer_id for neighbour in neighbours)

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """Set the banned peers, which are no longer members."""
        if self.p2p is not None:
            self.p2p.keep_out(banned)

    def allow(self, gate: NetworkGate) -> None:
        """Apply the owner's limits: traffic of other peers is relayed only while chunks may pass both ways."""
        if self.p2p is not None:
            self.p2p.allow_relaying(allowed=gate.send and gate.receive)

    def renew(self, credentials: TlsCredentials) -> None:
        self._direct.renew(credentials)
        for other in (self.p2p, self.punched):
            if other is not None:
                other.renew(credentials)

    async def close(self) -> None:
        await self._mirrors.close()
        for other in (self.p2p, self.punched):
            if other is not None:
                await other.close()
        await self._direct.close()


def _seen_as(address: str, p2p_address: str) -> str:
    """Return the libp2p host's address with the host name of the direct address: the host may listen on 0.0.0.0."""
    port = p2p_address.rpartition("/")[2]
    return str(P2pAddress.of(address.rpartition(":")[0].strip("[]"), int(port)))


def circuit_caps(config: LinkConfig) -> CircuitCaps | None:
    """Return the limits of relaying for other peers; None if this peer does not relay."""
    if not config.relay_for_others or config.metered:
        return None
    return CircuitCaps(
        circuits_most=config.relay_circuits_most,
        bytes_per_second=config.relay_mbit_s_max * 1e6 / 8,
        circuit_bytes=config.relay_circuit_bytes,
        circuit_s=config.relay_circuit_minutes * 60.0,
    )


def transports_of(
    config: LinkConfig,
    credentials: TlsCredentials,
    run_id: RunId,
    admit: Admission,
    mirrors: MirrorTransport,
    traffic: LinkTraffic,
    identity: Identity | None,
    policy: DialPolicy,
) -> Transports:
    """Make the transports of one process from its configuration. Call it inside a running event loop.

    Args:
        identity: the key of the certificate in ``credentials``; None: no libp2p.

    Raises:
        MissingExtra: libp2p is wanted and not installed.
    """
    direct = DirectTransport(config, credentials, run_id, admit, traffic=traffic)
    punched = PunchTransport(config, credentials, run_id, admit, traffic=traffic) if config.punch else None
    if not config.p2p or identity is None:
        return Transports(direct, mirrors, punched=punched, policy=policy)
    p2p = P2pTransport(
        identity,
        credentials,
        run_id,
        admit,
        host=config.host,
        port=config.p2p_port,
        traffic=traffic,
        caps=circuit_caps(config),
        dht=config.dht,
    )
    return Transports(direct, mirrors, p2p, punched, policy=policy)
