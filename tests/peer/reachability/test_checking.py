"""Test when a peer checks its reachability, how it uses a verdict, and which peers it dials back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from peer.links.dial_policy import DialPolicy
from peer.reachability import checking
from peer.reachability.advertised import AdvertisedReachability
from peer.reachability.checking import ReachabilityCheck, address_on_the_way_out
from peer.reachability.nat_kind import Seen
from peer.reachability.summary import ReachabilitySummary
from rollcast.runtime.errors import MalformedMessage, Unreachable
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.links.link_run import LinkRun
from tests.wire.links.test_tcp import listening

HOME = Seen("10.0.0.2", "192.0.2.1", 4000, 4000, reached=False)


class World:
    """A component, and a record of its acts."""

    def __init__(self, run: LinkRun) -> None:
        self.sent: asyncio.Queue[pb.PeerMessage] = asyncio.Queue()
        self.looks: asyncio.Queue[int] = asyncio.Queue()
        self.answers: list[Seen | Unreachable] = []
        self.address = "10.0.0.2"
        self.summary = ReachabilitySummary()
        self.reachability = AdvertisedReachability(lambda message: None)
        credentials = run.member("peer")[1]
        self.part = ReachabilityCheck(
            self._look,
            summary=self.summary,
            reachability=self.reachability,
            send=self.sent.put_nowait,
            credentials=lambda: credentials,
            run_id=run.run_id,
            random=Random(1),
            policy=DialPolicy(lambda: "127.0.0.1"),
            local_address=lambda: self.address,
        )

    async def _look(self) -> Seen:
        self.looks.put_nowait(1)
        answer = self.answers.pop(0) if self.answers else HOME
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    async def looked(self) -> None:
        async with asyncio.timeout(5.0):
            await self.looks.get()
        await asyncio.sleep(0)


@asynccontextmanager
async def running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    for name, value in (("_SPREAD_S", 0.0), ("_FIRST_RETRY_S", 0.01), ("_ADDRESS_LOOKED_AT_S", 0.01)):
        monkeypatch.setattr(checking, name, value)
    world = World(LinkRun(folder))
    task = asyncio.create_task(world.part.run())
    yield world
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_checks_in_every_session_and_when_the_address_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as world:
        await asyncio.sleep(0.02)
        assert world.looks.empty()
        world.part.opened(pb.Welcome())
        await world.looked()
        assert world.reachability.now.nat == "port-restricted"
        world.part.lost()
        world.part.opened(pb.Welcome())
        await world.looked()
        world.address = "10.0.1.2"
        await world.looked()
        await asyncio.sleep(0.05)
        assert world.looks.empty()


async def test_a_failed_check_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as world:
        world.answers = [Unreachable("busy"), Unreachable("busy"), HOME]
        world.part.opened(pb.Welcome())
        for _ in range(3):
            await world.looked()
        assert world.reachability.now.nat == "port-restricted"


async def test_a_coordinator_that_is_back_is_asked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as world:
        monkeypatch.setattr(checking, "_FIRST_RETRY_S", 1000.0)
        monkeypatch.setattr(checking, "_MOST_RETRY_S", 1000.0)
        world.answers = [Unreachable("it is away"), HOME]
        world.part.opened(pb.Welcome())
        await world.looked()
        world.part.lost()
        world.part.opened(pb.Welcome())
        await world.looked()
        assert world.reachability.now.nat == "port-restricted"


async def test_a_verdict_changes_the_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as world:
        world.summary.seen = HOME
        verdict = pb.DialVerdict(address="192.0.2.1:7", dialable=True, asked=2, reached=2)
        world.part.received(pb.CoordinatorMessage(dial_verdict=verdict))
        assert world.reachability.now.nat == "mapped"
        with pytest.raises(MalformedMessage):
            world.part.received(pb.CoordinatorMessage(dial_verdict=pb.DialVerdict(problem="x" * 2000)))


async def test_others_are_dialled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LinkRun(tmp_path / "run")
    async with listening(run) as (peer_id, address):
        world = World(run)
        stranger = run.member("peer")[0]
        for check_id, asked in ((1, peer_id), (2, stranger)):
            order = pb.DialBack(check_id=check_id, peer_id=asked, address=address)
            world.part.received(pb.CoordinatorMessage(dial_back=order))
        async with asyncio.timeout(5.0):
            found = [(await world.sent.get()).dial_back_outcome for _ in range(2)]
        found.sort(key=lambda one: one.check_id)
        assert found[0] == pb.DialBackOutcome(check_id=1, reached=True)
        assert not found[1].reached
        assert stranger in found[1].problem


async def test_dial_backs_at_once_and_per_minute_are_bounded(tmp_path: Path) -> None:
    world = World(LinkRun(tmp_path))
    order = pb.CoordinatorMessage(dial_back=pb.DialBack(check_id=1, peer_id="somebody", address="127.0.0.1:1"))
    for _ in range(20):
        world.part.received(order)
    assert len(world.part._dials) == checking._DIALS_AT_ONCE
    async with asyncio.timeout(10.0):
        for _ in range(checking._DIALS_AT_ONCE):
            await world.sent.get()
        for _ in range(checking._DIALS_A_MINUTE - checking._DIALS_AT_ONCE):
            await asyncio.sleep(0)  # the dial before is over once its outcome is sent and the loop has turned
            world.part.received(order)
            await world.sent.get()
    await asyncio.sleep(0)
    for _ in range(10):
        world.part.received(order)
    assert len(world.part._dials) == 0


@pytest.mark.parametrize(
    "address", ["", "example.org:7", "192.0.2.1", "192.0.2.1:0", "192.0.2.1:99999", "/ip4/1.2.3.4"]
)
async def test_only_ip_addresses_and_ports_are_dialled(tmp_path: Path, address: str) -> None:
    world = World(LinkRun(tmp_path))
    order = pb.DialBack(check_id=1, peer_id="somebody", address=address)
    with pytest.raises(MalformedMessage):
        world.part.received(pb.CoordinatorMessage(dial_back=order))


def test_the_address_on_the_way_out_is_one() -> None:
    assert address_on_the_way_out().count(".") in (0, 3)
