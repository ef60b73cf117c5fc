"""Test the fleet in the coordinator: real local processes, a real journal, and kills at the worst moments."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from capacity.fleet.events import WorkersWanted
from capacity.fleet.journal import read_journal
from capacity.fleet.rows import ClosedRow, JoinedRow, MarkRow, OpenedRow
from capacity.providers import host_agent
from coordinator.fleet.fleet import ProviderFleet
from rollcast.wire.ids import PeerId
from tests.capacity.providers.workers import kill_all
from tests.coordinator.fleet.fleet_process import RUN, Coordinator, fleet_over

WAIT_S = 40.0
PEER = PeerId("peer-of-local-1")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_all(tmp_path / "workers")


def running(folder: Path) -> list[str]:
    return [one["tag"] for one in host_agent.list_workers(folder / "workers", RUN)["running"]]


@asynccontextmanager
async def live(fleet: ProviderFleet) -> AsyncIterator[ProviderFleet]:
    task = asyncio.create_task(fleet.run())
    try:
        yield fleet
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await fleet.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - processes make it true
            await asyncio.sleep(0.05)


def phases(fleet: ProviderFleet) -> dict[str, str]:
    return {one.tag: one.phase for one in fleet.manager.workers()}


async def test_worker_starts_works_drains_and_stops(folder: Path) -> None:
    coordinator = Coordinator()
    async with live(fleet_over(folder, coordinator)) as fleet:
        fleet.submit(WorkersWanted({"local-1": "planned"}))
        await until(lambda: phases(fleet) == {"run-1.local-1.1": "joining"})
        fleet.claimed(b"somebody else's invite", PeerId("other"))
        fleet.claimed(b"1", PEER)
        coordinator.peers[PEER] = 0
        await until(lambda: phases(fleet) == {"run-1.local-1.1": "on"})
        fleet.submit(WorkersWanted({}))
        await until(lambda: fleet.manager.idle)
        await until(lambda: coordinator.notes[-1][0] == "worker_stopped")  # once the journal has it
        assert coordinator.dismissed == [PEER]
        assert running(folder) == []
        spent_usd = fleet.manager.budget.spent_usd
    kinds = [kind for kind, _ in coordinator.notes if kind != "worker_held_back"]  # until offers are known
    assert kinds == ["worker_started", "worker_joined", "worker_unwanted", "worker_stopped"]
    rows = read_journal(folder / "journal.jsonl")
    assert [type(row) for row in rows if isinstance(row, OpenedRow | JoinedRow | ClosedRow)] == [
        OpenedRow,
        JoinedRow,
        ClosedRow,
    ]
    assert 0.0 < spent_usd == sum(row.machine_usd for row in rows if isinstance(row, ClosedRow))
    assert coordinator.failures == []


@pytest.mark.parametrize("point", ["before", "during", "after"])
async def test_a_coordinator_killed_around_a_start_leaves_no_orphan(folder: Path, point: str) -> None:
    """The kill comes before the start, during it, or before its record; after the restart no worker is wanted."""
    kill_in_process(folder, point)
    coordinator = Coordinator()
    async with live(fleet_over(folder, coordinator)) as fleet:
        assert list(phases(fleet).values()) == ["unknown"]
        fleet.submit(WorkersWanted({}))
        # A worker whose agent outlived the kill may appear after the first list; a later one finds and stops it.
        await until(lambda: fleet.manager.idle and not running(folder))
    assert coordinator.invites == 0


async def test_wanted_worker_is_adopted_and_not_started_twice(folder: Path) -> None:
    kill_in_process(folder, "after")
    assert running(folder) == ["run-1.local-1.1"]
    coordinator = Coordinator()
    async with live(fleet_over(folder, coordinator)) as fleet:
        fleet.submit(WorkersWanted({"local-1": "planned"}))
        await until(lambda: phases(fleet) == {"run-1.local-1.1": "joining"})
        assert (running(folder), coordinator.invites) == (["run-1.local-1.1"], 0)
        await fleet.end("finished", WAIT_S)
        assert fleet.manager.idle
        assert running(folder) == []


async def test_peer_is_recognised_after_a_restart(folder: Path) -> None:
    before = Coordinator()
    async with live(fleet_over(folder, before)) as fleet:
        fleet.submit(WorkersWanted({"local-1": "planned"}))
        await until(lambda: phases(fleet) == {"run-1.local-1.1": "joining"})
        fleet.claimed(b"1", PEER)
        await until(lambda: any(isinstance(row, JoinedRow) for row in read_journal(folder / "journal.jsonl")))
    assert running(folder) == ["run-1.local-1.1"]  # the worker outlives the coordinator
    after = Coordinator()
    after.peers[PEER] = 0
    async with live(fleet_over(folder, after)) as fleet:
        await until(lambda: phases(fleet) == {"run-1.local-1.1": "on"})
        await fleet.end("finished", WAIT_S)
    assert running(folder) == []
    assert after.dismissed == [PEER]


async def test_workers_stop_before_the_money_is_spent(folder: Path) -> None:
    """A worker's tail of three minutes costs 0.18 $ at 3.6 $/h."""
    coordinator = Coordinator()
    async with live(fleet_over(folder, coordinator, usd_max=0.185)) as fleet:
        fleet.submit(WorkersWanted({"local-1": "planned", "local-2": "planned"}))
        await until(lambda: ("worker_unwanted", "run-1.local-1.1") in coordinator.notes)
        await until(lambda: fleet.manager.idle)
        assert fleet.manager.budget.spent_usd < 0.185
        assert "would be spent" in fleet.manager.held_back["local-2"]
    assert running(folder) == []


def kill_in_process(folder: Path, point: str) -> None:
    command = [sys.executable, "-m", "tests.coordinator.fleet.fleet_process", str(folder), point]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    rows = [row for row in read_journal(folder / "journal.jsonl") if not isinstance(row, MarkRow)]
    assert [type(row) for row in rows] == [OpenedRow]  # on a slow machine the cost of the first second is marked too


async def test_a_fault_in_a_tick_ends_the_run(folder: Path) -> None:
    class Faulty(Coordinator):
        def here(self) -> Mapping[PeerId, int]:
            raise error

    coordinator, error = Faulty(), KeyError("a fault of ours")
    async with live(fleet_over(folder, coordinator)):
        await until(lambda: coordinator.failures)
    assert coordinator.failures == [error]
