"""Test a coordinator that starts real peers by itself, shows their cost, and leaves none behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from capacity.fleet.events import LimitsChanged
from capacity.fleet.journal import read_journal
from capacity.fleet.rows import ClosedRow, JoinedRow
from capacity.providers import host_agent
from coordinator.core.events.actions import SetBudget, WantWorker
from coordinator.core.events.events import WorkersOffered
from coordinator.core.events.prices import Budget
from coordinator.fleet import setup
from coordinator.fleet.fleet import ProviderFleet
from coordinator.fleet.setup import FleetHandle
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.capacity.providers.workers import kill_all
from tests.coordinator.fleet.fleet_process import Coordinator as FleetsCoordinator
from tests.coordinator.fleet.fleet_process import fleet_over
from tests.coordinator.fleet.test_fleet import WAIT_S, live, phases, until
from tests.coordinator.running import Member, Running, changed, running
from tests.coordinator.test_service import open_run

JOIN_S = 300.0  # a peer at the lowest priority loads jax, on a machine where everything else goes first
POOL = """worker_id,start,hardware,usd_per_hour,upload_mbit_per_second,download_mbit_per_second,egress_usd_per_gb
local,local,l4,3.6,100,100,0
"""


async def spending(coordinator: Running) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client, client.get(f"{coordinator.http_url}/api/v1/status") as response:
        found: dict[str, Any] = (await response.json())["spending"]
        return found


async def phase(coordinator: Running) -> str:
    workers = (await spending(coordinator))["workers"]
    return str(workers[0]["phase"]) if workers else ""


def test_budget_is_passed_to_the_fleet() -> None:
    told: list[Any] = []

    class FakeFleet:
        def submit(self, event: Any) -> None:
            told.append(event)

    here = FleetHandle()
    here.set_budget(SetBudget(2.0, None))  # no provider is configured, so there is no spending to limit
    here.fleet = cast(ProviderFleet, FakeFleet())
    here.set_budget(SetBudget(2.0, None))
    here.set_budget(Budget(usd_total_max=9.0))
    assert told == [LimitsChanged(2.0, None), LimitsChanged(None, 9.0)]


@pytest.mark.e2e
@pytest.mark.timeout(450)
async def test_a_peer_is_started_joins_and_is_stopped_with_the_run(tmp_path: Path) -> None:
    workers = tmp_path / "run" / "providers" / "workers"
    (tmp_path / "pool.csv").write_text(POOL)
    peer = {"engine": {"kind": "jax"}}
    providers = {"want": "all", "usd_max": 5.0, "pool": str(tmp_path / "pool.csv"), "peer": peer}
    try:
        async with running(tmp_path, changed(providers=providers)) as coordinator:
            async with Member(await coordinator.join("learner")) as learner:
                await open_run(learner, coordinator)
                async with asyncio.timeout(JOIN_S):
                    while await phase(coordinator) != "on":  # noqa: ASYNC110 - a process makes it so
                        await asyncio.sleep(0.3)
                run_id = (await coordinator.join("peer")).run_id
                assert len(host_agent.list_workers(workers, run_id)["running"]) == 1
                async with aiohttp.ClientSession() as client, client.get(f"{coordinator.http_url}/metrics") as answer:
                    assert 'rollcast_provider_workers{phase="on",provider="local"} 1.0' in await answer.text()
                await learner.stub.ReportStatus(pb.LearnerStatus(phase="finished"))
            assert await coordinator.ended() == 0
        assert host_agent.list_workers(workers, run_id)["running"] == []
        rows = read_journal(RunFolder(tmp_path / "run").fleet_journal)
        assert {type(row) for row in rows} >= {JoinedRow, ClosedRow}
        assert '"spending"' in coordinator.folder.summary.read_text()
    finally:
        kill_all(workers)


@dataclass
class FakeCore:
    has_peers: bool = False
    newest_version: int | None = None


@dataclass
class FakeShell:
    """The part of the coordinator's shell that NoPeersTimer and want_planned use."""

    core: FakeCore = field(default_factory=FakeCore)
    ended_because: str = ""
    told: list[WorkersOffered] = field(default_factory=list)
    on_want: Callable[[WantWorker], None] = lambda action: None

    def apply(self, event: WorkersOffered) -> None:
        self.told.append(event)


async def test_capacity_model_receives_offers_and_its_workers_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "NO_PEERS_S", 0.0)
    monkeypatch.setattr(setup, "WANTED_EVERY_S", 0.1)
    shell, coordinator = FakeShell(), FleetsCoordinator()
    try:
        async with live(fleet_over(tmp_path, coordinator)) as fleet:
            wanting = asyncio.create_task(setup.want_planned(fleet, cast(Any, shell)))
            await until(lambda: shell.told)
            assert [one.worker_id for one in shell.told[0].workers] == ["local-1", "local-2"]
            await asyncio.sleep(0.3)
            assert fleet.manager.idle  # there is no version yet, so no worker is wanted
            shell.core.newest_version = 0
            await until(lambda: ("worker_started", "run-1.local-1.1") in coordinator.notes)
            shell.core.has_peers = True
            shell.on_want(WantWorker("local-2", True, "on: cheapest"))
            shell.on_want(WantWorker("local-1", False, "off: too dear"))
            await until(lambda: phases(fleet) == {"run-1.local-2.1": "joining"})
            fleet.claimed(b"2", PeerId("p"))
            coordinator.peers[PeerId("p")] = 0
            await until(lambda: shell.told[-1].backed)
            assert shell.told[-1].backed[PeerId("p")].worker_id == "local-2"
            wanting.cancel()
            await fleet.end("finished", WAIT_S)
    finally:
        kill_all(tmp_path / "workers")


async def test_run_offers_the_machines_of_its_pool_to_operators(tmp_path: Path) -> None:
    (tmp_path / "pool.csv").write_text(POOL)
    providers = {"want": "apply", "pool": str(tmp_path / "pool.csv")}
    async with running(tmp_path, changed(providers=providers)) as coordinator, aiohttp.ClientSession() as client:
        async with asyncio.timeout(WAIT_S):
            while not (fleet := await fleet_of(client, coordinator))["offers_known"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert (fleet["want"], fleet["start_timeout_s"]) == ("apply", 900.0)
    (worker,) = fleet["workers"]
    assert (worker["worker_id"], worker["usd_per_hour"], worker["state"]) == ("local", 3.6, "off")


async def fleet_of(client: aiohttp.ClientSession, coordinator: Running) -> dict[str, Any]:
    async with client.get(f"{coordinator.http_url}/api/v1/fleet") as response:
        found: dict[str, Any] = await response.json()
        return found


async def test_without_providers_spending_is_none(tmp_path: Path) -> None:
    async with running(tmp_path) as coordinator:
        assert await spending(coordinator) is None
        assert not RunFolder(tmp_path / "run").fleet_journal.exists()
