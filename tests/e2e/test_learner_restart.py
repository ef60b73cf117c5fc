"""Test a learner of two processes in a real run: each of them is killed once, and the run still completes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from learner.distributed.supervisor import WORKER
from rollcast.cli.processes import Fleet
from rollcast.cli.watch import run_fleet
from tests.e2e.test_run import make_fleet

STEPS = 16
CHECKPOINT_EVERY = 2
KILL_AFTER = 4  # steps from the start, and from one loss to the next
GROUPS, SAMPLES = 4, 4
DEADLINE_S = 520.0  # for a busy machine; an idle one takes a minute


class TwoProcesses:
    """A story in which the fleet's learner leads; it starts the follower, and kills the worker of each once."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.follower: subprocess.Popen[bytes] | None = None
        self.killed: list[str] = []
        self.phases: list[str] = []
        self._wait_for_step = KILL_AFTER

    def start_follower(self, _endpoints: object) -> None:
        config, log = self.fleet.folder.config / "learner.toml", self.fleet.log_path("follower")
        command = [sys.executable, "-m", "rollcast.cli.main", "learner", str(config), "--process-id", "1"]
        with log.open("ab") as output:
            self.follower = subprocess.Popen(
                [*command, "--log-file", str(log), "--with-parent"], stdout=output, stderr=output, process_group=0
            )

    def on_status(self, status: Mapping[str, Any], _ended: Mapping[str, int]) -> None:
        """Kill the follower's worker and, once the run has passed that step again, the leader's."""
        if not self.phases or self.phases[-1] != status["learner_phase"]:
            self.phases.append(status["learner_phase"])
        if len(self.killed) == 2 or int(status["step"]) < self._wait_for_step:
            return
        assert self.follower is not None
        name, supervisor = (
            ("leader", self.fleet.processes["learner"].pid) if self.killed else ("follower", self.follower.pid)
        )
        worker_of(supervisor).kill()
        self.killed.append(name)
        self._wait_for_step = int(status["step"]) + KILL_AFTER


def worker_of(supervisor: int) -> psutil.Process:
    """Return the process that a supervisor started last."""
    (worker,) = (one for one in psutil.Process(supervisor).children() if one.environ().get(WORKER) == "1")
    return worker


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_resumes_from_its_checkpoint_when_a_learner_process_is_killed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    fleet = make_fleet(
        tmp_path,
        *(f"coordinator.run.steps={STEPS}", "peers=1", "coordinator.store.margin_steps=1000"),
        *("learner.distributed.shared_run_folder=true", "learner.distributed.processes=2"),
        f'learner.distributed.coordinator_address="{address}"',
        *("learner.distributed.join_timeout_s=90", "learner.distributed.lost_after_s=5"),
        *(f"learner.checkpoint.every_steps={CHECKPOINT_EVERY}", "learner.warm_start.steps_max=0"),
        *("learner.mesh.fsdp=2", f"coordinator.run.groups_per_step={GROUPS}", "learner.evaluation_problems=8"),
    )
    two = TwoProcesses(fleet)

    async def follow() -> bool:
        async with asyncio.timeout(DEADLINE_S):
            return await run_fleet(fleet, two.start_follower, two.on_status, asyncio.Event())

    try:
        assert asyncio.run(follow())
        assert two.follower is not None
        assert two.follower.wait(60) == 0
    finally:
        if two.follower is not None:
            two.follower.kill()
            two.follower.wait()
        fleet.kill_all()

    assert two.killed == ["follower", "leader"]
    assert fleet.restarts == {}, "the supervisors start their workers again; nobody starts the supervisors"
    assert fleet.ended()["learner"] == 0
    for name in ("learner", "follower"):
        lines = [line for line in fleet.log_path(name).read_text().splitlines() if line.startswith("{")]
        events = [json.loads(line)["event"] for line in lines]
        assert events.count("a learner process was lost; restarting it") >= 2
    resumed = [json.loads(line) for line in fleet.log_path("learner").read_text().splitlines() if '"resumed"' in line]
    assert len(resumed) >= 2
    assert [one["step"] for one in resumed] == sorted(one["step"] for one in resumed)
    assert all(one["step"] % CHECKPOINT_EVERY == 0 and one["step"] > 0 for one in resumed)
    summary = json.loads(fleet.folder.summary.read_text())
    assert summary["rollouts"]["trained"] == STEPS * GROUPS * SAMPLES
    with closing(sqlite3.connect(fleet.folder.ledger)) as database:
        (rollouts, different) = database.execute(
            "SELECT count(*), count(DISTINCT rollout_id) FROM batch_rollouts"
        ).fetchone()
    assert rollouts == different == STEPS * GROUPS * SAMPLES
    steps = [json.loads(line)["step"] for line in fleet.folder.metrics.read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1)), "each step is reported once"
    assert not [one for one in psutil.process_iter() if _is_worker(one, fleet)]


def _is_worker(process: psutil.Process, fleet: Fleet) -> bool:
    try:
        return str(fleet.folder.root) in " ".join(process.cmdline()) and process.pid != os.getpid()
    except psutil.Error:
        return False
