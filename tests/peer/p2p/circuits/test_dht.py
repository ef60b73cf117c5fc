"""Test the DHT with real libp2p hosts on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("libp2p")

import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from peer.p2p.circuits import dht as dht_module
from peer.p2p.circuits.dht import Dht
from peer.p2p.circuits.dht_key import Found, run_key
from peer.p2p.host import Host
from peer.p2p.libp2p_host import close_connections, make_host
from peer.p2p.streams.limits import HostLimits
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import PeerId

KEY = run_key("run-1", b"ca")


class Member:
    """A host and the peers that it found; ``certificate_der`` determines its run."""

    def __init__(self, run: bytes = b"ours") -> None:
        self.identity = Identity.generate()
        self.run = run
        self.heard: list[Found] = []
        self.knows = trio.Event()
        self.port = 0
        self.dht: Dht = None  # type: ignore[assignment]

    @property
    def address(self) -> str:
        return f"/ip4/127.0.0.1/tcp/{self.port}/p2p/{self.identity.peer_id}"

    @property
    def names(self) -> set[PeerId]:
        return {peer_id for found in self.heard for peer_id, _ in found}

    def buffers(self) -> Any:
        raise NotImplementedError

    def accepted(self, link: Any) -> None:
        raise NotImplementedError

    def certificate(self) -> bytes:
        return self.run

    def judge(self, peer_id: PeerId, certificate_der: bytes, answer: Callable[[bool], None]) -> None:
        answer(certificate_der == self.run)

    def reserved(self, circuits: tuple[str, ...]) -> None:
        raise NotImplementedError

    def pass_on(self, grant: Callable[[int], None]) -> None:
        raise NotImplementedError

    def found(self, found: Found) -> None:
        self.heard.append(found)
        if found:
            self.knows.set()

    async def run_host(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        host = make_host(self.identity, HostLimits())
        async with host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]), trio.open_nursery() as nursery:
            self.host = host
            running = Host(host, HostLimits(), self, nursery, lambda call: call, None, KEY)
            nursery.start_soon(running.serve)
            self.port = int(host.get_addrs()[0].value_for_protocol("tcp"))
            assert running.dht is not None
            self.dht = running.dht
            task_status.started()
            await trio.sleep_forever()


@asynccontextmanager
async def running(*members: Member) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for member in members:
            await nursery.start(member.run_host)
        yield
        for member in members:
            await close_connections(member.host)
        nursery.cancel_scope.cancel()


def test_members_that_know_one_other_find_all() -> None:
    members = [Member() for _ in range(5)]

    async def scenario() -> None:
        async with running(*members):
            for before, member in zip([members[-1], *members], members, strict=False):
                member.dht.seek([before.address], [member.address])
            for _ in range(2):
                for member in members:
                    await member.dht.round()

    trio.run(scenario)
    everybody = {member.identity.peer_id for member in members}
    for member in members:
        assert member.names == everybody - {member.identity.peer_id}
    addresses = {address for found in members[0].heard for _, told in found for address in told}
    assert addresses == {member.address for member in members[1:]}


def test_a_stranger_gets_no_answer_and_stores_nothing() -> None:
    member, other, stranger = Member(), Member(), Member(b"another run's")

    async def scenario() -> None:
        async with running(member, other, stranger):
            other.dht.seek([member.address], [other.address])
            await other.dht.round()
            stranger.dht.seek([member.address], [stranger.address])
            await stranger.dht.round()
            await member.dht.round()

    trio.run(scenario)
    assert stranger.names == set()
    assert stranger.identity.peer_id not in member.names
    assert other.identity.peer_id in member.names


def test_a_peer_that_cannot_be_dialled_looks_up_and_announces_nothing() -> None:
    open_one, hidden = Member(), Member()

    async def scenario() -> None:
        async with running(open_one, hidden):
            open_one.dht.seek([], [open_one.address])
            await open_one.dht.round()  # alone, it keeps its entry itself
            hidden.dht.seek([open_one.address], [])
            await hidden.dht.round()
            await open_one.dht.round()

    trio.run(scenario)
    assert hidden.names == {open_one.identity.peer_id}
    assert open_one.names == set()


def test_a_host_that_learns_of_very_many_keeps_its_own_entry() -> None:
    only = Member()

    async def scenario() -> None:
        async with running(only):
            known, own_id = only.host.get_peerstore(), only.host.get_id()
            key = known.privkey(own_id)
            for _ in range(1100):
                peer_id = ID.from_string(Identity.generate().peer_id)
                known.add_addrs(peer_id, [Multiaddr("/ip4/127.0.0.1/tcp/1")], 600)
            assert len(known.peer_ids()) <= 1001, "libp2p's own bound, and itself"
            assert known.privkey(own_id) == key

    trio.run(scenario)


def test_rounds_repeat_and_survive_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dht_module, "FIRST_ROUND_S", 0.1)
    first, second = Member(), Member()
    nobody = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"

    async def scenario() -> None:
        async with running(first, second):
            first.dht.seek([nobody], [first.address])
            second.dht.seek([nobody, "nonsense", first.address], [second.address])
            with trio.fail_after(10.0):
                await first.knows.wait()
                await second.knows.wait()

    trio.run(scenario)
