"""Test `rollcast capacity apply` against a run's fleet of real local processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capacity.providers.base import Running, WorkerTag
from capacity.providers.local import LocalProvider
from capacity.questions.plan_json import encode
from coordinator.api.fleet import FleetRoutes
from coordinator.fleet.applied import AppliedWorkers
from coordinator.fleet.fleet import ProviderFleet
from coordinator.fleet.setup import FleetHandle, want_applied
from rollcast.cli.capacity.apply import wait_for
from rollcast.cli.coordinator_api import TOKEN_VARIABLE
from rollcast.cli.main import app
from rollcast.runtime.errors import ConfigError, MalformedMessage, ProviderFailed, RunFolderError
from rollcast.wire.ids import PeerId
from tests.capacity.providers.workers import kill_all
from tests.capacity.sample_fleet import chosen_document, fleet_of, offered
from tests.cli.capacity.capacity_calls import call
from tests.coordinator.fleet.fleet_process import Coordinator, fleet_over
from tests.coordinator.fleet.test_fleet import live, running, until
from tests.coordinator.http.serving import KEY, Given, served


def written(folder: Path, *chosen: str) -> str:
    path = folder / "plan.json"
    path.write_bytes(encode(chosen_document(*chosen)))
    return str(path)


@dataclass
class Run:
    """A run's fleet over real processes, served over HTTP."""

    folder: Path
    url: str
    fleet: ProviderFleet
    coordinator: Coordinator

    async def call(self, *words: str) -> int:
        """Run the command in a thread, as a process of its own would be."""
        command = ["capacity", "apply", *words, "--url", self.url]
        found = await asyncio.to_thread(app, command, exit_on_error=False, result_action="return_value")
        return int(found or 0)

    async def join_all(self, count: int) -> None:
        """Let the peers of this many workers join as soon as their processes run."""
        await until(lambda: len(running(self.folder)) == count)
        for number in range(1, self.coordinator.invites + 1):
            peer = PeerId(f"peer-{number}")
            self.fleet.claimed(b"%d" % number, peer)
            self.coordinator.peers[peer] = 0


@asynccontextmanager
async def run_of(folder: Path) -> AsyncIterator[Run]:
    """Run a fleet with its applied set in ``folder``, as a coordinator does, and serve its routes."""
    coordinator, handle = Coordinator(), FleetHandle()
    async with live(fleet_over(folder, coordinator)) as fleet:
        applied = AppliedWorkers.load(folder / "applied.json")
        handle.run(fleet, applied, "apply")
        wanting = asyncio.create_task(want_applied(fleet, applied))
        (folder / "page").mkdir(exist_ok=True)
        async with served(folder / "page", Given(routes=FleetRoutes(handle).routes())) as page:
            yield Run(folder, page.url, fleet, coordinator)
        wanting.cancel()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(TOKEN_VARIABLE, KEY)
    yield tmp_path
    kill_all(tmp_path / "workers")


async def test_a_plan_is_shown_started_once_continued_and_reduced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = written(folder, "local-1", "local-2", "cloud", "donor")
    async with run_of(folder) as run:
        assert await run.call(both, "--json") == 3
        dry = json.loads(capsys.readouterr().out)
        assert [one["step"] for one in dry["steps"]] == ["start", "start", "cannot", "cannot"]
        assert (dry["dry_run"], dry["started_usd_per_hour"]) == (True, 7.2)
        assert (running(folder), run.fleet.wanted) == ([], frozenset())
        status, _ = await asyncio.gather(run.call(both, "--yes"), run.join_all(2))
        assert status == 0
        shown = capsys.readouterr()
        assert "local-1: on" in shown.err
        assert "--emit terraform" in shown.out
        assert await run.call(both, "--yes") == 0
        assert (run.coordinator.invites, len(running(folder))) == (2, 2)
    async with run_of(folder) as run:  # a coordinator that was restarted goes on with the same workers
        run.coordinator.peers |= {PeerId("peer-1"): 0, PeerId("peer-2"): 0}
        assert await run.call(both, "--yes") == 0
        assert (run.coordinator.invites, len(running(folder))) == (0, 2)
        assert await run.call(written(folder, "local-1"), "--yes", "--stop-others") == 0
        await until(lambda: len(running(folder)) == 1)
        assert (run.fleet.wanted, run.coordinator.dismissed) == ({"local-1"}, [PeerId("peer-2")])


async def test_a_failed_start_is_reported_and_the_others_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = LocalProvider.start

    async def start(self: LocalProvider, tag: WorkerTag, invite: str, *, deadline_s: float) -> Running:
        if tag.worker_id == "local-2":
            raise ProviderFailed("the cloud has no such machine left")
        return await begin(self, tag, invite, deadline_s=deadline_s)

    monkeypatch.setattr(LocalProvider, "start", start)
    async with run_of(folder) as run:
        plan = written(folder, "local-1", "local-2")
        status, _ = await asyncio.gather(run.call(plan, "--yes"), run.join_all(1))
        shown = capsys.readouterr()
        assert status == 2
        assert "local-2: failed (the cloud has no such machine left)" in shown.err
        assert "local-1: on" in shown.err
        assert len(running(folder)) == 1


def test_files_are_listed_with_the_steps_that_use_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, into = written(tmp_path, "cloud", "donor"), tmp_path / "files"
    words = ("apply", plan, "--emit", "terraform", "--into", str(into))
    found = call(capsys, *words)
    assert (found.status, str(into / "workers.tf.json") in found.out, "donor" in found.err) == (0, True, True)
    assert "terraform apply" in found.out
    assert call(capsys, *words, "--json").json["left_out"] == ["donor"]


def test_waiting_ends_in_time_and_names_the_workers_that_have_not_joined(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter(range(100))
    fleet = fleet_of(offered("a", state="starting"), offered("b", state="on"))
    found = wait_for({"a", "b"}, fleet, lambda: fleet, 3.0, lambda: float(next(now)), lambda _: None)
    assert found is fleet
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines[:2]) == ["a: starting", "b: on"]
    assert lines[2:] == ["1 workers have not joined within 3s; the run goes on with them"]


async def test_a_run_that_starts_nothing_on_request_says_so(folder: Path) -> None:
    (folder / "page").mkdir()
    async with served(folder / "page", Given(routes=FleetRoutes(FleetHandle()).routes())) as page:
        run = Run(folder, page.url, None, Coordinator())  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no workers on request"):
            await run.call(written(folder, "local-1"), "--yes")
        assert (await page.post("/api/v1/acts/fleet", {"start": ["local-1"]}))[1]["code"] == MalformedMessage.code
        assert (await page.post("/api/v1/acts/fleet", {"start": ["../x"]}))[0] == 400
        assert (await page.post("/api/v1/acts/fleet", {}, None))[0] == 401


def test_a_plan_without_a_run_names_what_could_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match="no run is here that could start") as raised:
        call(capsys, "apply", written(tmp_path, "a"))
    assert "--emit skypilot" in raised.value.fix
