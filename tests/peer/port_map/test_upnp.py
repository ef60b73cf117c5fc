"""Test UPnP against a router that is a real HTTP server on loopback."""

from __future__ import annotations

import sys
import threading
from random import Random

import pytest

from peer.port_map import upnp
from peer.port_map.core import Mapped
from peer.port_map.upnp import Upnp, in_thread
from rollcast.runtime.errors import MissingExtra, Unreachable, WaitTimedOut
from tests.peer.port_map.routers import OUTSIDE_IP, SsdpAnswerer, UpnpRouter

pytest.importorskip("miniupnpc")


async def test_ports_are_mapped_and_unmapped() -> None:
    async with UpnpRouter().open() as router:
        client = Upnp(description=router.description)
        got = await client.map_ports([(7420, 7420)], 3600)
        assert got == Mapped("UPnP", OUTSIDE_IP, ((7420, 7420),), 3600)
        assert router.mapped == {7420: (7420, "127.0.0.1", 3600)}
        await client.unmap([7420])
        assert router.mapped == {}


async def test_the_router_is_found_by_searching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upnp, "DISCOVER_MS", 300)
    async with UpnpRouter().open() as router, SsdpAnswerer(router.description).open():
        got = await Upnp(interface="127.0.0.1").map_ports([(7420, 7420)], 3600)
        assert got.ip == OUTSIDE_IP
        assert router.mapped == {7420: (7420, "127.0.0.1", 3600)}


async def test_unmapping_does_not_search_for_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upnp, "DISCOVER_MS", 300)
    async with UpnpRouter().open() as router:
        client = Upnp(interface="127.0.0.1")
        async with SsdpAnswerer(router.description).open():
            await client.map_ports([(7420, 7420)], 3600)
        await client.unmap([7420])
        assert router.mapped == {}


async def test_a_port_of_another_machine_is_not_taken() -> None:
    async with UpnpRouter().open() as router:
        router.taken.add(7420)
        got = await Upnp(description=router.description, random=Random(0)).map_ports([(7420, 7420)], 3600)
        ((inside, outside),) = got.ports
        assert (inside, outside == 7420) == (7420, False)
        assert list(router.mapped) == [outside]


async def test_a_router_that_knows_no_leases_maps_for_ever() -> None:
    async with UpnpRouter().open() as router:
        router.only_permanent = True
        got = await Upnp(description=router.description).map_ports([(7420, 7420)], 3600)
        assert (got.ports, got.lease_s) == (((7420, 7420),), 0)


async def test_no_router_is_one_error() -> None:
    with pytest.raises(Unreachable, match="no router maps ports over UPnP"):
        await Upnp(description="http://127.0.0.1:1/root.xml").map_ports([(7420, 7420)], 3600)


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "miniupnpc", None)
    with pytest.raises(MissingExtra, match="not installed"):
        await Upnp().map_ports([(7420, 7420)], 3600)


async def test_a_router_that_hangs_does_not_delay_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(upnp, "MAP_TIMEOUT_S", 0.1)
    client = Upnp()
    monkeypatch.setattr(client, "_map", lambda ports, lease_s: go_on.wait(10.0))
    with pytest.raises(WaitTimedOut):
        await client.map_ports([(7420, 7420)], 3600)
    go_on.set()


async def test_what_a_thread_raises_is_raised() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
