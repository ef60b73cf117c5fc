"""Decide which addresses this process dials when another process names them.

The coordinator's plans, signed records of peers and multicast answers name addresses. None of them may direct this
process to a service on its own machine or in its own network: an address is dialled only if it leads at least as far
as the connection to the coordinator does, or if its peer is in the same local network. The coordinator applies the same
rule to what it names; this is the second check. Names are resolved here, and the addresses that were checked are those
that are dialled, so that a name cannot lead elsewhere a moment later.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network

import structlog

from peer.links.addresses import CircuitAddress, P2pAddress, is_p2p_address, parse
from rollcast.runtime.errors import RollcastError, Unreachable
from rollcast.runtime.waits import deadline
from rollcast.wire.address_scope import Scope, host_and_port, is_ip, may_be_named, scope_of, with_port
from rollcast.wire.ids import PeerId
from rollcast.wire.reach_words import PUNCH

log = structlog.get_logger()

_LOOKUP_S = 5.0
_RESOLVED_MOST = 4  # addresses of one name that are dialled
_LOGGED_MOST = 256  # refused addresses that are logged; further ones are only counted

Resolve = Callable[[str], Awaitable[list[str]]]


async def resolve(host: str) -> list[str]:
    """Return the IP addresses of a name, the preferred first.

    Raises:
        Unreachable: the name has none.
        WaitTimedOut: the name servers took too long.
    """
    async with deadline(_LOOKUP_S, f"the address of {host}"):
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{host} has no address", cause=str(error)) from None
    return list(dict.fromkeys(str(where[4][0]) for where in found))[:_RESOLVED_MOST]


class DialPolicy:
    """The rule for one process.

    Args:
        coordinator: returns the host of the coordinator's address that is in use.
        resolve: returns the IP addresses of a name.
        networks: private networks, in CIDR notation, in which the owner has peers dialled whatever the coordinator's
            address.
    """

    def __init__(
        self, coordinator: Callable[[], str], resolve: Resolve = resolve, networks: Sequence[str] = ()
    ) -> None:
        self._coordinator = coordinator
        self._resolve = resolve
        self._networks = [ip_network(one, strict=False) for one in networks]
        self._home: tuple[str, Scope] = ("", Scope.PUBLIC)
        self._near: dict[str, frozenset[PeerId]] = {}
        self._logged: set[str] = set()
        self.refused = 0
        """Addresses that were named to this process and not dialled."""

    def know_near(self, source: str, peer_ids: Iterable[PeerId]) -> None:
        """Replace the peers of this local network that one source names; private addresses of them are dialled."""
        self._near[source] = frozenset(peer_ids)

    async def allowed(self, peer_id: PeerId, address: str) -> list[str]:
        """Return the addresses to dial in place of one that another process named: names are resolved.

        Raises:
            Unreachable: the address is malformed, leads where this process dials no peer, or has no IP address.
            WaitTimedOut: the name servers took too long.
        """
        if address == PUNCH:
            return [address]  # the coordinator's order names the address; see ``refusal``
        host = _host_of(peer_id, address)
        if host is None:
            raise self._refuse(address, "it is not the address of a peer")
        await self.settle()
        hosts = await self._resolved(host)
        for one in hosts:
            if problem := self.refusal(one, peer_id):
                raise self._refuse(address, problem)
        return [address] if hosts == [host] else [_at(peer_id, address, one) for one in hosts]

    async def allow_mirror(self, address: str) -> None:
        """Check a mirror that the relay plan names: only this process's own configuration may name http and files.

        Raises:
            Unreachable, WaitTimedOut: as ``allowed`` does.
        """
        scheme, _, rest = address.partition("://")
        host = host_and_port(rest.partition("/")[0]) or host_and_port(f"{rest.partition('/')[0]}:443")
        if scheme != "https" or host is None:
            raise self._refuse(address, "a relay plan may name https mirrors alone")
        await self.settle()
        for one in await self._resolved(host[0]):
            if problem := self.refusal(one):
                raise self._refuse(address, problem)

    def refusal(self, host: str, peer_id: PeerId | None = None) -> str:
        """Return why an IP address is not dialled, in words; empty if it may be."""
        self._settle_at_once()
        scope, home = scope_of(host), self._home[1]
        if may_be_named(scope, home) or (scope is Scope.PRIVATE and self._is_near(host, peer_id)):
            return ""
        kind = scope.name.lower().replace("_", "-")
        return f"{host} is a {kind} address, and this peer's coordinator is at a {home.name.lower()} one"

    def _is_near(self, host: str, peer_id: PeerId | None) -> bool:
        ip = ip_address(host.strip("[]").partition("%")[0])
        return any(peer_id in near for near in self._near.values()) or any(ip in one for one in self._networks)

    def reject(self, address: str, problem: str) -> None:
        """Count and log an address that is not dialled."""
        self.refused += 1
        if address not in self._logged and len(self._logged) < _LOGGED_MOST:
            self._logged.add(address)
            log.warning("refused to dial an address", address=address[:200], reason=problem, refused=self.refused)

    async def settle(self) -> None:
        """Find out where the coordinator is: a name of it that leads both far and near counts as far."""
        self._settle_at_once()
        host = self._coordinator()
        if host == self._home[0]:
            return
        try:
            found = await self._resolve(host)
        except RollcastError:
            found = []
        self._home = (host, max(map(scope_of, found), default=Scope.PUBLIC))

    def _settle_at_once(self) -> None:
        host = self._coordinator()
        if host != self._home[0] and is_ip(host):
            self._home = (host, scope_of(host))

    def _refuse(self, address: str, problem: str) -> Unreachable:
        self.reject(address, problem)
        return Unreachable(f"refused to dial {address[:200]!r}", cause=problem)

    async def _resolved(self, host: str) -> list[str]:
        return [host] if is_ip(host) else await self._resolve(host)


def _host_of(peer_id: PeerId, address: str) -> str | None:
    """Return the host to which a dial of this address connects; None if it is not the address of a peer."""
    if is_p2p_address(address):
        try:
            found = parse(address, peer_id)
        except Unreachable:
            return None
        return found.relay.host if isinstance(found, CircuitAddress) else found.host
    direct = host_and_port(address)
    return None if direct is None else direct[0]


def _at(peer_id: PeerId, address: str, host: str) -> str:
    """Return the address with an IP address in place of its host."""
    if not is_p2p_address(address):
        return with_port(host, address.rpartition(":")[2])
    found = parse(address, peer_id)
    listening = found.relay if isinstance(found, CircuitAddress) else found
    there = replace(P2pAddress.of(host, listening.port), peer_id=listening.peer_id)
    return str(CircuitAddress(there, found.peer_id) if isinstance(found, CircuitAddress) else there)
