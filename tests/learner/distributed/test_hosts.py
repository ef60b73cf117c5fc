"""Test a learner on hosts that Slurm starts: four processes lose one, and two go on from their checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from learner.checkpoints.checkpoint import Checkpoints
from learner.distributed.supervisor import was_lost
from learner.training.trainer import Trainer
from tests.learner.distributed.hosts import CONFIG, MODEL, Team, course, hash_of

FOUR = Team(processes=4, until=2, saves=2, loses=0)
TWO = Team(processes=2, until=3, saves=3, shared=True, repeats=True)
ONE_OF_TWO = Team(processes=2, missing=1)


def play(folder: Path, *teams: Team) -> list[list[int]]:
    """Return the exit statuses of the teams' processes, of one team after the other."""
    command = [sys.executable, "-m", "tests.learner.distributed.hosts", str(folder)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    given = json.dumps([dataclasses.asdict(team) for team in teams])
    done = subprocess.run([*command, given], env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def reported(folder: Path, number: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"team-{number}.jsonl").read_text().splitlines()]


@pytest.mark.timeout(600)
def test_four_processes_train_as_one_and_two_go_on_where_they_were_lost(tmp_path: Path) -> None:
    four, two, one_of_two = play(tmp_path, FOUR, TWO, ONE_OF_TWO)
    assert four[0] == -signal.SIGKILL
    assert all(map(was_lost, four)), "when the leader is lost, the others end too, and their supervisors restart them"
    assert two == [0, 0]
    assert all(map(was_lost, one_of_two)), "a process whose leader never comes does not wait forever"

    first, then = reported(tmp_path, 0), reported(tmp_path, 1)
    assert [line["step"] for line in first + then] == [0, 1, 2, 2, 3]
    saved, restored, last = first[2], then[0], then[1]
    assert restored["digest"] == saved["digest"], "two processes read what four wrote"
    assert restored["version"] == saved["version"], "all write the same version, with a shared folder and without"
    assert last["again"], "a step that is repeated from the checkpoint has the same metrics and gives the same version"

    trainer = Trainer(MODEL, CONFIG)
    alone = list(course(trainer, tmp_path / "alone", Team(processes=1, until=3)))
    for mine, theirs in zip(alone[1:], [*first[1:], last], strict=True):
        assert theirs["metrics"] == pytest.approx(mine["metrics"], abs=1e-5)

    on_one_device = Checkpoints(tmp_path / "checkpoints", keep=2).restore(lambda _, found: trainer.load(found))
    assert on_one_device is not None
    assert on_one_device.digest == last["digest"]
    assert hash_of(trainer.snapshot()) == last["version"]
