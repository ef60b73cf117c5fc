"""Test port mapping as a peer runs it, against real servers on loopback."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from pydantic import ValidationError

from peer.config import LinkConfig
from peer.port_map import router_socket
from peer.port_map.component import PortMapping, advertised
from peer.port_map.routers import NatPmpRouter, PcpRouter, UpnpRouter, pcp_nonce, routers_for
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.identity import Identity
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.port_map import routers

CONFIG = LinkConfig(host="0.0.0.0", port=7420, map_port=True)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_socket, "FIRST_WAIT_S", 0.01)


NONCE = bytes(range(12))


def part(nat_pmp_port: int, description: str, told: asyncio.Queue[str], config: LinkConfig = CONFIG) -> PortMapping:
    return PortMapping(
        config,
        told.put_nowait,
        random=Random(0),
        routers={
            "IPv4": {
                "NAT-PMP": NatPmpRouter("127.0.0.1", port=nat_pmp_port),
                "UPnP": UpnpRouter(description=description),
            }
        },
    )


def part_of_both(nat_pmp_port: int, pcp_port: int, told: asyncio.Queue[str]) -> PortMapping:
    return PortMapping(
        CONFIG,
        told.put_nowait,
        random=Random(0),
        routers={
            "IPv4": {"NAT-PMP": NatPmpRouter("127.0.0.1", port=nat_pmp_port)},
            "IPv6": {"PCP": PcpRouter(NONCE, router="::1", own=lambda: "::1", port=pcp_port)},
        },
    )


async def test_the_router_maps_the_port_until_the_end() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    async with routers.NatPmpRouter().open() as router:
        config = CONFIG.model_copy(update={"p2p": True, "p2p_port": 7421})
        running = asyncio.create_task(part(router.port, "http://127.0.0.1:1/", told, config).run())
        async with deadline(5.0, "an address"):
            assert await told.get() == "203.0.113.5:7420 /ip4/203.0.113.5/tcp/7421"
        assert sorted(router.mapped) == [7420, 7421]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert router.mapped == {}


async def test_upnp_is_tried_where_nat_pmp_fails() -> None:
    pytest.importorskip("miniupnpc")
    told: asyncio.Queue[str] = asyncio.Queue()
    async with routers.UpnpRouter().open() as router:
        running = asyncio.create_task(part(1, router.description, told).run())
        async with deadline(5.0, "an address"):
            assert await told.get() == "203.0.113.5:7420"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert router.mapped == {}


async def test_both_versions_of_ip_are_advertised_and_removed() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    async with routers.NatPmpRouter().open() as over_ipv4, routers.PcpRouter().open() as over_ipv6:
        running = asyncio.create_task(part_of_both(over_ipv4.port, over_ipv6.port, told).run())
        async with deadline(5.0, "two addresses"):
            texts = [await told.get(), await told.get()]
        assert texts[-1] == "203.0.113.5:7420 [2a00:1450::7]:7420"
        assert (list(over_ipv4.mapped), over_ipv6.opened) == ([7420], {7420: (NONCE, 3600)})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (over_ipv4.mapped, over_ipv6.opened) == ({}, {})


async def test_a_router_without_pcp_leaves_the_mapping_over_ipv4() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    async with routers.NatPmpRouter().open() as over_ipv4, routers.PcpRouter().open() as over_ipv6:
        over_ipv6.result = 2
        running = asyncio.create_task(part_of_both(over_ipv4.port, over_ipv6.port, told).run())
        async with deadline(5.0, "an address"):
            assert await told.get() == "203.0.113.5:7420"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert told.empty()


async def test_a_new_session_renews_the_mappings_that_are_held() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    async with routers.PcpRouter().open() as router:
        component = part_of_both(1, router.port, told)
        component.opened(pb.Welcome())  # nothing is held yet
        running = asyncio.create_task(component.run())
        async with deadline(5.0, "two addresses"):
            assert await told.get() == "[2a00:1450::7]:7420"
            router.outside_ip = "2a00:1450::8"
            component.opened(pb.Welcome())
            assert await told.get() == "[2a00:1450::8]:7420"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("host", "versions"),
    [("0.0.0.0", ["IPv4"]), ("192.0.2.7", ["IPv4"]), ("::", ["IPv4", "IPv6"]), ("2a00::7", ["IPv6"])],
)
def test_the_versions_of_ip_are_those_that_links_are_accepted_over(host: str, versions: list[str]) -> None:
    assert list(routers_for(CONFIG.model_copy(update={"host": host}), NONCE)) == versions


def test_the_nonce_outlives_the_process_and_differs_by_peer() -> None:
    identity = Identity.generate()
    assert pcp_nonce(identity) == pcp_nonce(identity) != pcp_nonce(Identity.generate())
    assert len(pcp_nonce(identity)) == 12


def test_without_a_mapping_no_address_is_advertised() -> None:
    assert advertised("", ()) == ""


@pytest.mark.parametrize("values", [{"port": 0, "host": "0.0.0.0"}, {"port": 7420, "host": "127.0.0.1"}])
def test_a_configuration_without_a_fixed_port_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="map_port "):
        LinkConfig.model_validate({**values, "map_port": True})
