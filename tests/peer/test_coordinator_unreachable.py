"""Test whole peers whose coordinator becomes unreachable."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peer.config import PeerConfig
from peer.discovery.offline import OfflineWatch
from peer.service import run
from peer.session.hello import heartbeat_of
from rollcast.wire.identity.peer_record import verify_record
from rollcast.wire.ids import RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.engines.fake_engine import FakeEngine
from tests.peer.joined_peer import Role, joined_config, keep_version, welcome_to
from tests.peer.relay.relay_world import until
from tests.peer.scripted_coordinator import RUN_ID, scripted_coordinator
from tests.peer.versions import announcement_of


def start(config: PeerConfig, stop: asyncio.Event) -> asyncio.Task[int]:
    return asyncio.create_task(run(config, stop, engine_factory=lambda _: FakeEngine()))


@pytest.mark.parametrize("role", ["origin", "peer"])
async def test_a_process_outlives_a_coordinator_that_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    monkeypatch.setattr("peer.session.session.WRITE_TIMEOUT_S", 0.5)
    padding = "x" * 3_000_000  # of each heartbeat, so that few of them fill the connection

    def heartbeat(*arguments: Any) -> pb.Heartbeat:
        padded = heartbeat_of(*arguments)
        padded.state = padding
        return padded

    monkeypatch.setattr("peer.service.heartbeat_of", heartbeat)
    stop = asyncio.Event()
    async with scripted_coordinator(tmp_path) as coordinator, asyncio.timeout(20.0):
        running = start(joined_config(tmp_path / role, coordinator, role), stop)
        first = await coordinator.next_session(welcome_to(RUN_ID))
        first.reads.clear()
        again = await coordinator.next_session(welcome_to(RUN_ID))
        assert (await again.expect("hello")).role == role
        padding = ""
        stop.set()
        assert await running == 0


async def test_a_peer_receives_a_version_from_a_peer_of_its_address_book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.connect.setup.OfflineWatch", partial(OfflineWatch, offline_after_s=0.2))
    monkeypatch.setattr("peer.discovery.exchange._LOOK_S", 0.1)
    stop = asyncio.Event()
    async with scripted_coordinator(tmp_path) as coordinator, asyncio.timeout(20.0):
        welcome = welcome_to(RUN_ID)
        origin_config = joined_config(tmp_path / "origin", coordinator, "origin")
        peer_config = joined_config(tmp_path / "peer", coordinator)
        keep_version(origin_config.state_folder, 1)
        tasks = [start(origin_config, stop)]
        origin = await coordinator.next_session(welcome)
        records = await origin.expect("peer_records")
        told = await origin.expect("hello")
        record = verify_record(records.records[0], run_id=RunId(RUN_ID), now_unix_s=time.time())
        assert record.addresses == (told.advertise,)

        tasks.append(start(peer_config, stop))
        session = await coordinator.next_session(welcome)
        session.send(pb.CoordinatorMessage(peer_records=records))
        dial_back = pb.DialBack(check_id=7, peer_id=record.peer_id, address=told.advertise)
        session.send(pb.CoordinatorMessage(dial_back=dial_back))
        assert (await session.expect("dial_back_outcome")).reached  # what was sent before has come, too
        # The coordinator plans nothing, announces nothing, and goes.
        port = int(coordinator.address.rpartition(":")[2])
        await coordinator.stop()
        state = peer_config.state_folder / "versions" / RUN_ID
        await until(lambda: any(state.rglob("*.data")))

        await coordinator.start(port)
        back = [await coordinator.next_session(welcome) for _ in tasks]
        hellos = [await one.expect("hello") for one in back]
        assert [list(hello.held_versions) for hello in hellos] == [[1], [1]]
        session = next(one for one, hello in zip(back, hellos, strict=True) if hello.role == "peer")
        assert "version_held" not in session.kinds()
        session.send(pb.CoordinatorMessage(announcement=announcement_of(1)))
        assert (await session.expect("version_held")).version == 1
        stop.set()
        assert await asyncio.gather(*tasks) == [0, 0]


async def test_a_peer_receives_a_version_from_a_peer_found_on_the_local_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zeroconf")
    monkeypatch.setattr("peer.connect.setup.OfflineWatch", partial(OfflineWatch, offline_after_s=0.2))
    monkeypatch.setattr("peer.discovery.exchange._LOOK_S", 0.1)
    stop = asyncio.Event()
    async with scripted_coordinator(tmp_path) as coordinator, asyncio.timeout(30.0):
        welcome = welcome_to(RUN_ID)
        link = {"mdns": True}  # over the interface of link.host, which is loopback
        origin_config = joined_config(tmp_path / "origin", coordinator, "origin", link=link)
        peer_config = joined_config(tmp_path / "peer", coordinator, link=link)
        keep_version(origin_config.state_folder, 1)
        tasks = []
        for config in (origin_config, peer_config):
            tasks.append(start(config, stop))
            await (await coordinator.next_session(welcome)).expect("hello")
        await coordinator.stop()  # without a word about the other one, to either
        state = peer_config.state_folder / "versions" / RUN_ID
        await until(lambda: any(state.rglob("*.data")))
        stop.set()
        assert await asyncio.gather(*tasks) == [0, 0]
