"""Map ports over UPnP (Internet Gateway Device) with miniupnpc, whose blocking calls run in threads with deadlines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

from peer.port_map.core import Mapped
from rollcast.runtime.errors import MissingExtra, Unreachable
from rollcast.runtime.install import install_command
from rollcast.runtime.waits import deadline

DISCOVER_MS = 2000
"""Milliseconds that routers have to answer a search."""
MAP_TIMEOUT_S = 20.0
UNMAP_TIMEOUT_S = 1.5
_TRIES = 4
_LOWEST_PORT = 1024
_NAME = "rollcast"
_ONLY_PERMANENT = "OnlyPermanentLeasesSupported"
"""miniupnpc's text for error 725 of WANIPConnection:1."""

ResultT = TypeVar("ResultT")


class Upnp:
    """The router of this machine's network.

    Args:
        interface: address of the interface to search from; empty: the system's choice.
        description: URL of the router's description; empty: it is searched for.
    """

    def __init__(self, *, interface: str = "", description: str = "", random: Random | None = None) -> None:
        self._interface = interface
        self._description = description
        self._random = random or Random()
        self._mapped_by: Any = None  # kept for unmap: on shutdown there is no time for another search

    async def map_ports(self, ports: Sequence[tuple[int, int]], lease_s: int) -> Mapped:
        """Map TCP ports of this machine.

        Args:
            ports: (inside, preferred outside).

        Raises:
            MissingExtra: miniupnpc is not installed.
            Unreachable: no router answers, or the router refuses.
            WaitTimedOut: it took longer than MAP_TIMEOUT_S.
        """
        async with deadline(MAP_TIMEOUT_S, "the router to map ports over UPnP"):
            return await in_thread(lambda: self._map(ports, lease_s))

    async def unmap(self, outside_ports: Sequence[int]) -> None:
        """Remove the mappings of these ports.

        Raises:
            Unreachable, WaitTimedOut, MissingExtra: see map_ports.
        """
        async with deadline(UNMAP_TIMEOUT_S, "the router to remove port mappings over UPnP"):
            await in_thread(lambda: self._unmap(outside_ports))

    def _unmap(self, outside_ports: Sequence[int]) -> None:
        router = self._mapped_by or self._router()
        for outside in outside_ports:
            _asked(partial(router.deleteportmapping, outside, "TCP"))

    def _map(self, ports: Sequence[tuple[int, int]], lease_s: int) -> Mapped:
        router = self._router()
        ip = str(_asked(router.externalipaddress))
        mapped = []
        for inside, outside in ports:
            got, lease_s = self._map_one(router, inside, outside, lease_s)
            mapped.append((inside, got))
        self._mapped_by = router
        return Mapped("UPnP", ip, tuple(mapped), lease_s)

    def _map_one(self, router: Any, inside: int, outside: int, lease_s: int) -> tuple[int, int]:
        """Map one port; return the outside port and the lease. Another machine may hold the preferred port."""
        problem = ""
        for _ in range(_TRIES):
            try:
                router.addportmapping(outside, "TCP", router.lanaddr, inside, _NAME, "", lease_s)
            except Exception as error:  # miniupnpc raises plain Exception
                problem = str(error)
                if lease_s and _ONLY_PERMANENT in problem:
                    lease_s = 0
                else:
                    outside = self._random.randint(_LOWEST_PORT, 65535)
            else:
                return outside, lease_s
        raise Unreachable(f"the router refuses to forward port {inside}", cause=problem)

    def _router(self) -> Any:
        try:
            import miniupnpc
        except ImportError as error:
            raise MissingExtra(
                "UPnP needs a package that is not installed",
                cause=str(error),
                fix=f"{install_command('lan')}; routers with NAT-PMP do not need it",
            ) from None
        router = miniupnpc.UPnP(multicastif=self._interface or None, discoverdelay=DISCOVER_MS)
        if self._description:
            _asked(lambda: router.selectigd(self._description))
        else:
            _asked(router.discover)
            _asked(router.selectigd)
        return router


def _asked(call: Callable[[], ResultT]) -> ResultT:
    try:
        return call()
    except Exception as error:  # miniupnpc raises plain Exception
        raise Unreachable("no router maps ports over UPnP", cause=str(error) or type(error).__name__) from None


async def in_thread(call: Callable[[], ResultT]) -> ResultT:
    """Run a call like asyncio.to_thread, but in a daemon thread: a call that hangs must not delay the process's end."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[ResultT] = loop.create_future()

    def settle(value: ResultT | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)  # type: ignore[arg-type]
        else:
            result.set_exception(error)

    def work() -> None:
        value, problem = None, None
        try:
            value = call()
        except Exception as error:
            problem = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=work, name="upnp", daemon=True).start()
    return await result
