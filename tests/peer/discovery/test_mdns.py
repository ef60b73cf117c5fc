"""Test discovery with real multicast DNS on loopback."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

from peer.discovery.mdns import NAMES_MOST, Mdns
from peer.discovery.mdns_record import SERVICE, Nearby
from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import PeerId, RunId

pytest.importorskip("zeroconf")
RUN_ID = RunId("run-1")


class Peer:
    def __init__(self, role: str, port: int, run_id: RunId = RUN_ID) -> None:
        self.peer_id: PeerId = Identity.generate().peer_id
        self.found: asyncio.Queue[Nearby] = asyncio.Queue()
        self.part = Mdns(self.peer_id, role, run_id, host="127.0.0.1", port=lambda: port, found=self.found.put_nowait)
        self.running = asyncio.create_task(self.part.run())

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


async def test_only_peers_of_the_same_run_find_each_other() -> None:
    peers = [Peer("origin", 7001), Peer("peer", 0), Peer("peer", 7003, RunId("another"))]
    origin, hidden, stranger = peers
    try:
        async with deadline(15.0, "the origin to be found"):
            near = await hidden.found.get()
        assert near == Nearby(origin.peer_id, "origin", ("127.0.0.1:7001",))
        await asyncio.sleep(0.5)
        assert origin.found.empty()  # nobody can dial the hidden one
        assert stranger.found.empty()
        assert hidden.found.empty()
    finally:
        await asyncio.gather(*(peer.stop() for peer in peers))


async def test_invented_services_are_bounded() -> None:
    peer = Peer("peer", 0)
    await peer.stop()
    added = type("Change", (), {"name": "Added"})
    for number in range(1000):
        peer.part._changed(name=f"x{number}.{SERVICE}", state_change=added)
    assert len(peer.part._names) == NAMES_MOST
    peer.part._changed(name=f"x0.{SERVICE}", state_change=type("Change", (), {"name": "Removed"}))
    assert len(peer.part._names) == NAMES_MOST - 1


async def test_services_without_an_answer_take_no_place_from_others() -> None:
    peer = Peer("peer", 0)
    await peer.stop()

    class Silent:
        def __init__(self, kind: str, name: str) -> None:
            """Simulate a service that answers no query."""

        async def async_request(self, running: object, timeout_ms: int) -> bool:
            await asyncio.sleep(0)
            return False

    added = type("Change", (), {"name": "Added"})
    working = asyncio.create_task(peer.part._resolve(SimpleNamespace(AsyncServiceInfo=Silent), None))
    try:
        for number in range(NAMES_MOST):
            peer.part._changed(name=f"x{number}.{SERVICE}", state_change=added)
        async with deadline(5.0, "all to be looked at"):
            while peer.part._names:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf.asyncio", None)
    with pytest.raises(MissingExtra, match="local network"):
        await Mdns(PeerId("x"), "peer", RUN_ID, host="127.0.0.1", port=lambda: 0, found=lambda near: None).run()
