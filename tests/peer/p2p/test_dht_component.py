"""Test the components of the libp2p host: its table of members, and circuits through relays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.p2p.circuits_component import CircuitsComponent
from peer.p2p.dht_component import DhtComponent, libp2p_hosts
from peer.p2p.transport import P2pTransport
from peer.reachability.advertised import AdvertisedReachability
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.scripted_coordinator import peer_credentials

CIRCUIT = "/ip4/192.0.2.9/tcp/4001/p2p/R/p2p-circuit/p2p/A"


def test_lookups_start_from_libp2p_hosts_that_can_be_dialled() -> None:
    known = [
        (PeerId("A"), f"192.0.2.1:7 punch /ip4/192.0.2.1/tcp/4001 {CIRCUIT}"),
        (PeerId("B"), "/ip4/192.0.2.2/tcp/4001/p2p/B"),
        (PeerId("C"), "https://mirror/x"),
    ]
    assert libp2p_hosts(known) == ["/ip4/192.0.2.1/tcp/4001/p2p/A", "/ip4/192.0.2.2/tcp/4001/p2p/B"]


class Transport:
    def __init__(self) -> None:
        self.sought: list[tuple[tuple[str, ...], list[str]]] = []
        self.on_found: Any = None

    def seek(self, seeds: tuple[str, ...], own: list[str]) -> None:
        self.sought.append((seeds, own))


async def test_seeds_of_the_configuration_come_first_and_hints_are_passed_on() -> None:
    transport, hints = Transport(), []
    part = DhtComponent(
        cast(Any, transport),
        ["/ip4/192.0.2.7/tcp/4001/p2p/S"],
        known=lambda: [(PeerId("B"), "/ip4/192.0.2.2/tcp/4001")],
        own=lambda: ["192.0.2.1:7420", "/ip4/192.0.2.1/tcp/4001"],
        found=lambda peer_id, addresses: hints.append((peer_id, addresses)),
    )
    running = asyncio.create_task(part.run())
    await asyncio.sleep(0)
    running.cancel()
    seeds = ("/ip4/192.0.2.7/tcp/4001/p2p/S", "/ip4/192.0.2.2/tcp/4001/p2p/B")
    assert transport.sought == [(seeds, ["/ip4/192.0.2.1/tcp/4001"])]
    transport.on_found(PeerId("X"), ("/ip4/192.0.2.3/tcp/1",))
    assert hints == [("X", ("/ip4/192.0.2.3/tcp/1",))]


async def test_hosts_in_their_threads_find_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libp2p")
    from peer.p2p.circuits import dht

    monkeypatch.setattr(dht, "FIRST_ROUND_S", 0.1)
    ca = RunCA.create(tmp_path / "ca", RunId("run-1"))
    found: asyncio.Queue[tuple[PeerId, tuple[str, ...]]] = asyncio.Queue()
    identities = [Identity.generate(), Identity.generate()]
    transports = [
        P2pTransport(identity, peer_credentials(ca, identity), RunId("run-1"), lambda caller: "", dht=True)
        for identity in identities
    ]
    transports[1].on_found = lambda peer_id, addresses: found.put_nowait((peer_id, addresses))
    first, second = [
        f"{await transport.start(lambda link: cast(Any, None))}/p2p/{identity.peer_id}"
        for transport, identity in zip(transports, identities, strict=True)
    ]
    try:
        transports[0].seek([second], [first])
        transports[1].seek([first], [second])
        async with deadline(20.0, "a hint"):
            peer_id, addresses = await found.get()
        assert (peer_id, addresses) == (identities[0].peer_id, (first,))
        await asyncio.sleep(0.5)  # libp2p leaves sockets open whose dial is cancelled
    finally:
        for transport in transports:
            await transport.close()


OWN = PeerId("me")


async def told(advertised: str, *, relays: bool) -> tuple[Any, pb.Reachability]:
    """Yield the transport and the findings reported to the coordinator while the component runs."""
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
async def test_the_address_for_reservations_is_advertised_if_relaying_is_on(
    advertised: str, relays: bool, address: str
) -> None:
    _, said = await told(advertised, relays=relays)
    assert said.relay_address == address


async def test_named_relays_are_used_and_circuits_advertised() -> None:
    transport, said = await told("", relays=True)
    assert transport.wanted == [["/one", "/two"]]
    assert list(said.circuits) == ["/one/p2p-circuit/p2p/me"]
