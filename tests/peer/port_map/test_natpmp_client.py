"""Against a router that is a real UDP server on loopback."""

from __future__ import annotations

import socket

import pytest

from peer.port_map import natpmp
from peer.port_map.core import Mapped
from peer.port_map.natpmp import NatPmp
from rollcast.runtime.errors import Unreachable
from tests.peer.port_map.routers import OUTSIDE_IP, NatPmpRouter


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natpmp, "FIRST_WAIT_S", 0.02)


async def test_ports_are_mapped_and_given_back() -> None:
    async with NatPmpRouter().open() as router, NatPmp("127.0.0.1", router.port) as client:
        router.lease_s_most = 1800
        got = await client.map_ports([(7420, 7420), (7421, 7420)], 3600)
        assert got == Mapped("NAT-PMP", OUTSIDE_IP, ((7420, 7420), (7421, 7421)), 1800)
        await client.unmap([7420])
        assert router.mapped == {7421: (7421, 1800)}


async def test_lost_packets_are_sent_again() -> None:
    async with NatPmpRouter().open() as router, NatPmp("127.0.0.1", router.port) as client:
        router.deaf_to = 3
        assert (await client.map_ports([(7420, 7420)], 3600)).ports == ((7420, 7420),)


async def test_a_router_that_refuses_says_why() -> None:
    async with NatPmpRouter().open() as router, NatPmp("127.0.0.1", router.port) as client:
        router.result = 2
        with pytest.raises(Unreachable) as caught:
            await client.map_ports([(7420, 7420)], 3600)
        assert caught.value.cause == "port mapping is turned off in its settings"


async def test_a_router_that_grants_no_time_has_not_done_it() -> None:
    async with NatPmpRouter().open() as router, NatPmp("127.0.0.1", router.port) as client:
        router.lease_s_most = 0
        with pytest.raises(Unreachable, match="no lease"):
            await client.map_ports([(7420, 7420)], 3600)


async def test_a_router_that_is_silent_or_knows_nothing_of_it_is_given_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        async with NatPmp("127.0.0.1", silent.getsockname()[1]) as client:
            with pytest.raises(Unreachable, match="does not answer"):
                await client.map_ports([(7420, 7420)], 3600)
        closed = silent.getsockname()[1]
    async with NatPmp("127.0.0.1", closed) as client:
        with pytest.raises(Unreachable, match="has no NAT-PMP"):
            await client.map_ports([(7420, 7420)], 3600)
