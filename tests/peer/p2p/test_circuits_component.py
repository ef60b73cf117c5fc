from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from peer.p2p.circuits_component import CircuitsComponent
from peer.reachability.advertised import AdvertisedReachability
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

OWN = PeerId("me")


async def told(advertised: str, *, relays: bool) -> tuple[Any, pb.Reachability]:
    """The transport and what is told the coordinator, once the part runs."""
    wanted: list[list[str]] = []
    transport: Any = SimpleNamespace(
        relays_for_others=relays, want_relays=lambda addresses: wanted.append(list(addresses)), wanted=wanted
    )
    reached = AdvertisedReachability(lambda _: None)
    part = CircuitsComponent(transport, reached, OWN, lambda: advertised)
    running = asyncio.create_task(part.run())
    await asyncio.sleep(0)
    part.received(pb.CoordinatorMessage(circuit_relays=pb.CircuitRelays(addresses=["/one", "/two"])))
    transport.on_circuits(("/one/p2p-circuit/p2p/me",))
    running.cancel()
    return transport, reached.now


@pytest.mark.parametrize(
    ("advertised", "relays", "address"),
    [
        ("192.0.2.1:4000 /ip4/192.0.2.1/tcp/4001", True, "/ip4/192.0.2.1/tcp/4001/p2p/me"),
        ("192.0.2.1:4000 /ip4/192.0.2.1/tcp/4001", False, ""),
        ("", True, ""),
        ("192.0.2.1:4000", True, ""),
    ],
)
async def test_others_are_told_where_to_reserve_if_they_may(advertised: str, relays: bool, address: str) -> None:
    _, said = await told(advertised, relays=relays)
    assert said.relay_address == address


async def test_relays_are_named_and_circuits_told() -> None:
    transport, said = await told("", relays=True)
    assert transport.wanted == [["/one", "/two"]]
    assert list(said.circuits) == ["/one/p2p-circuit/p2p/me"]
