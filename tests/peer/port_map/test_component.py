"""Test port mapping as a peer runs it, against real servers on loopback."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from pydantic import ValidationError

from peer.config import LinkConfig
from peer.port_map import natpmp
from peer.port_map.component import NatPmpRouter, PortMapping, UpnpRouter, advertised
from rollcast.runtime.waits import deadline
from tests.peer.port_map import routers

CONFIG = LinkConfig(host="0.0.0.0", port=7420, map_port=True)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natpmp, "FIRST_WAIT_S", 0.01)


def part(nat_pmp_port: int, description: str, told: asyncio.Queue[str], config: LinkConfig = CONFIG) -> PortMapping:
    return PortMapping(
        config,
        told.put_nowait,
        random=Random(0),
        routers={
            "NAT-PMP": NatPmpRouter("127.0.0.1", port=nat_pmp_port),
            "UPnP": UpnpRouter(description=description),
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


def test_without_a_mapping_no_address_is_advertised() -> None:
    assert advertised("", ()) == ""


@pytest.mark.parametrize("values", [{"port": 0, "host": "0.0.0.0"}, {"port": 7420, "host": "127.0.0.1"}])
def test_a_configuration_without_a_fixed_port_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="map_port "):
        LinkConfig.model_validate({**values, "map_port": True})
