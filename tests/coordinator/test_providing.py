"""A coordinator that starts real peers by itself, shows what they cost, and leaves none behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capacity.fleet_journal import read_journal
from capacity.fleet_rows import ClosedRow, JoinedRow
from capacity.providers import host_agent
from coordinator.providing import journal_path
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.capacity.providers.workers import kill_all
from tests.coordinator.running import Member, Running, changed, running
from tests.coordinator.test_service import open_run

JOIN_S = 100.0  # a peer at the lowest priority loads jax
POOL = {"kind": "local", "workers": 1, "usd_per_hour": 3.6}
PROVIDERS = changed(providers={"want": "all", "usd_max": 5.0, "pools": [POOL], "peer": {"engine": {"kind": "jax"}}})


async def spending(coordinator: Running) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client, client.get(f"{coordinator.http_url}/api/v1/status") as response:
        found: dict[str, Any] = (await response.json())["spending"]
        return found


async def phase(coordinator: Running) -> str:
    workers = (await spending(coordinator))["workers"]
    return str(workers[0]["phase"]) if workers else ""


@pytest.mark.e2e
async def test_a_peer_is_started_joins_and_is_stopped_with_the_run(tmp_path: Path) -> None:
    workers = tmp_path / "run" / "providers" / "workers"
    try:
        async with running(tmp_path, PROVIDERS) as coordinator:
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
        rows = read_journal(journal_path(tmp_path / "run"))
        assert {type(row) for row in rows} >= {JoinedRow, ClosedRow}
        assert '"spending"' in coordinator.folder.summary.read_text()
    finally:
        kill_all(workers)


async def test_without_providers_there_is_no_money_to_show(tmp_path: Path) -> None:
    async with running(tmp_path) as coordinator:
        assert await spending(coordinator) is None
        assert not journal_path(tmp_path / "run").exists()
