"""Test which address a peer reports for peers of its local network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from peer.reachability import local_address
from peer.reachability.advertised import AdvertisedReachability
from peer.reachability.local_address import LocalAddress
from rollcast.wire.proto import rollcast_pb2 as pb


async def told(host: str, port: Callable[[], int] = lambda: 7420, coordinator: str = "192.0.2.1") -> str:
    reached = AdvertisedReachability(lambda _: None)
    task = asyncio.create_task(LocalAddress(host, port, reached, lambda: coordinator).run())
    await asyncio.sleep(0.05)
    task.cancel()
    return reached.now.local_address


async def test_the_address_is_that_of_the_interface_towards_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_address, "address_on_the_way_out", lambda to="": f"192.168.1.{len(to)}")
    assert await told("0.0.0.0") == "192.168.1.9:7420"
    assert await told("0.0.0.0", coordinator="2001:db8::1") == "192.168.1.0:7420"  # that way says nothing of IPv4


async def test_no_address_on_a_public_interface_on_loopback_or_without_a_port() -> None:
    assert await told("192.168.7.7") == "192.168.7.7:7420"
    assert await told("192.0.2.7") == ""
    assert await told("192.168.7.7", port=lambda: 0) == ""
    assert await told("0.0.0.0", coordinator="127.0.0.1") == ""


async def test_a_new_session_checks_the_address_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = ["192.168.1.2", "192.168.2.2"]
    monkeypatch.setattr(local_address, "address_on_the_way_out", lambda to="": hosts.pop(0))
    reached = AdvertisedReachability(lambda _: None)
    part = LocalAddress("0.0.0.0", lambda: 7420, reached, lambda: "192.0.2.1")
    task = asyncio.create_task(part.run())
    await asyncio.sleep(0.05)
    assert reached.now.local_address == "192.168.1.2:7420"
    part.lost()
    part.opened(pb.Welcome())
    await asyncio.sleep(0.05)
    assert reached.now.local_address == "192.168.2.2:7420"
    task.cancel()
