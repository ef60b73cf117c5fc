"""Find other peers on the local network, and be found there, over multicast DNS (link.mdns)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import structlog

from peer.discovery.mdns_record import SERVICE, Nearby, instance_name, parse_nearby, properties_of
from peer.links.traffic import is_lan_address
from rollcast.runtime.errors import MissingExtra, Unreachable
from rollcast.runtime.install import install_command
from rollcast.runtime.process import is_loopback
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

NAMES_MOST = 64
"""Most services considered; if there are more, some host on the network invents them."""
AGAIN_S = 300.0
"""Seconds after which peers that are still announced are reported again; their addresses expire otherwise."""
_RESOLVE_MS = 3000
_RESOLVES_AT_ONCE = 4
_LOOK_S = 60.0  # seconds between two checks whether this machine's addresses changed
_ANY = ("", "0.0.0.0")


class Mdns:
    """Discovery over multicast DNS, a connectivity component (peer.connect.connectivity).

    Args:
        host: interface on which links are accepted; 0.0.0.0: all.
        port: returns the port of links; called once the process listens. 0: this peer cannot be dialled, and only
            looks for others.
        found: called with a peer that is announced nearby, at once and every AGAIN_S seconds.
    """

    kinds: frozenset[str] = frozenset()

    def __init__(
        self,
        peer_id: PeerId,
        role: str,
        run_id: RunId,
        *,
        host: str,
        port: Callable[[], int],
        found: Callable[[Nearby], None],
    ) -> None:
        self._peer_id = peer_id
        self._role = role
        self._run_id = run_id
        self._host = host
        self._port = port
        self._found = found
        self._names: dict[str, Nearby | None] = {}
        self._due: asyncio.Queue[str] = asyncio.Queue(NAMES_MOST)

    async def run(self) -> None:
        """Announce this peer and listen to others until cancelled; start anew when this machine's addresses change.

        Raises:
            MissingExtra: zeroconf is not installed.
            Unreachable: this machine takes no multicast.
        """
        library = _library()
        while True:
            interfaces = self._interfaces()
            if interfaces:
                await self._serve(library, interfaces)
            else:
                await asyncio.sleep(_LOOK_S)

    async def _serve(self, library: Any, interfaces: list[str]) -> None:
        """Announce and listen until this machine has other addresses."""
        try:
            service = library.AsyncZeroconf(interfaces=interfaces, ip_version=library.IPVersion.V4Only)
        except OSError as error:
            raise Unreachable("no local network for discovery", cause=str(error)) from None
        working = [asyncio.create_task(self._resolve(library, service.zeroconf)) for _ in range(_RESOLVES_AT_ONCE)]
        working.append(asyncio.create_task(self._again()))
        try:
            if self._port():
                await service.async_register_service(self._info(library, interfaces))
                log.info("announced on the local network", addresses=interfaces, port=self._port())
            library.AsyncServiceBrowser(service.zeroconf, SERVICE, handlers=[self._changed])
            while self._interfaces() == interfaces:
                done, _ = await asyncio.wait(working, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # these tasks end only by an error, which this raises
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            self._names.clear()
            await service.async_close()  # it also announces that this peer is gone

    def _interfaces(self) -> list[str]:
        return [self._host] if self._host not in _ANY else _own_addresses()

    def opened(self, welcome: pb.Welcome) -> None:
        """See ConnectivityComponent; discovery works without a coordinator."""

    def lost(self) -> None:
        """See ConnectivityComponent."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """See ConnectivityComponent; no message is for this component."""

    def _info(self, library: Any, interfaces: list[str]) -> Any:
        return library.AsyncServiceInfo(
            SERVICE,
            instance_name(self._peer_id),
            addresses=[socket.inet_aton(address) for address in interfaces],
            port=self._port(),
            properties=properties_of(self._peer_id, self._role, self._run_id),
            server=f"{self._peer_id}.local.",
        )

    def _changed(self, *, name: str, state_change: Any, **_: Any) -> None:
        """Queue a service that came or changed, or drop one that went; called on the event loop."""
        if state_change.name == "Removed":
            self._names.pop(name, None)
        elif name != instance_name(self._peer_id) and (name in self._names or len(self._names) < NAMES_MOST):
            self._names.setdefault(name, None)
            if not self._due.full():  # a host that floods the network is resolved later, or not at all
                self._due.put_nowait(name)

    async def _resolve(self, library: Any, running: Any) -> None:
        while True:
            name = await self._due.get()
            info = library.AsyncServiceInfo(SERVICE, name)
            if name not in self._names:
                continue
            if not await info.async_request(running, _RESOLVE_MS):
                if self._names.get(name) is None:  # invented or gone: it must not take the place of others
                    self._names.pop(name, None)
                continue
            near = parse_nearby(
                info.properties,
                info.parsed_addresses(),
                info.port or 0,
                run_id=self._run_id,
                loopback=is_loopback(self._host),
            )
            if near is None or near.peer_id == self._peer_id:
                self._names.pop(name, None)
            elif name in self._names:
                if self._names[name] != near:
                    log.info("peer found on the local network", peer=near.peer_id, addresses=near.addresses)
                self._names[name] = near
                self._found(near)

    async def _again(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            for near in self._names.values():
                if near is not None:
                    self._found(near)


def _own_addresses() -> list[str]:
    """Return the IPv4 addresses of this machine on local networks."""
    return [
        one.address
        for found in psutil.net_if_addrs().values()
        for one in found
        if one.family == socket.AF_INET and is_lan_address(one.address) and not is_loopback(one.address)
    ]


def _library() -> Any:
    try:
        from zeroconf import IPVersion
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf
    except ImportError as error:
        raise MissingExtra(
            "finding peers on the local network needs a package that is not installed",
            cause=str(error),
            fix=f"{install_command('lan')}, or set link.mdns = false",
        ) from None
    return SimpleNamespace(
        AsyncServiceBrowser=AsyncServiceBrowser,
        AsyncServiceInfo=AsyncServiceInfo,
        AsyncZeroconf=AsyncZeroconf,
        IPVersion=IPVersion,
    )
