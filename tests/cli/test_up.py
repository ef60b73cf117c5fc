"""Test what `rollcast up` says before it starts anything."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import structlog

from coordinator.config.config import CoordinatorConfig
from coordinator.stores.sqlite import lock
from peer.config import PeerConfig
from rollcast.cli import up
from rollcast.cli.main import app
from rollcast.cli.processes import Fleet
from rollcast.policy.sizing.device_shares import Accelerators, share_devices
from rollcast.policy.sizing.hardware import GIB
from rollcast.runtime.config import load_config
from rollcast.runtime.errors import ConfigError, RunFolderError, RunOver, StoreError
from rollcast.runtime.run_folder import RunFolder

CONFIGS = Path(__file__).parents[2] / "configs"
SHARES = share_devices(Accelerators("gpu", ("0",)), 1, ["peer-1"], 0.5)


def test_standard_output_is_for_the_summary_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Ended(Exception):
        pass

    def run(coroutine: Coroutine[Any, Any, int]) -> int:
        coroutine.close()
        raise Ended

    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(up.asyncio, "run", run)
    structlog.reset_defaults()
    try:
        with pytest.raises(Ended):  # after the machine's devices were looked for
            up.up(CONFIGS / "local.toml", setting=(f"runs_folder={tmp_path}",), json_output=True)
    finally:
        structlog.reset_defaults()
    assert capsys.readouterr().out == ""


def test_a_finished_run_names_commands_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up.shutil, "which", lambda command: f"/usr/bin/{command}")
    for line in up.next_commands({"step": 200, "version": 200}):
        command, *words = line.partition("#")[0].split()
        assert command == "rollcast"
        app.parse_args(words, exit_on_error=False, print_error=False)
    monkeypatch.setattr(up.shutil, "which", lambda command: None)
    monkeypatch.setattr(up.sys, "argv", [".venv/bin/rollcast", "up"])
    assert all(line.split()[0] == ".venv/bin/rollcast" for line in up.next_commands({"step": 3, "version": 2}))
    monkeypatch.setattr(up.sys, "argv", ["/clone/rollcast/cli/main.py", "up"])
    assert up.own_command() == f"{sys.executable} -m rollcast.cli.main", "a module's file is no program"


@pytest.mark.parametrize(
    ("step", "version", "shown"),
    [(200, 200, "explain step 200"), (20, 19, "explain step 20"), (1, 1, "explain step 1")],
)
def test_a_finished_run_names_a_step_and_a_version_that_it_has(step: int, version: int, shown: str) -> None:
    first, *_ = up.next_commands({"step": step, "version": version})
    assert f"{shown} " in first
    assert f"version {version}," in first


def test_a_run_without_a_step_names_none() -> None:
    assert not any("explain" in line for line in up.next_commands({"step": 0, "version": None}))


def test_a_run_whose_learner_could_not_score_its_rollouts_is_refused_before_it_starts(tmp_path: Path) -> None:
    keep = ("coordinator.lease.at_version_swap=keep", f"runs_folder={tmp_path}")
    with pytest.raises(ConfigError, match="at_version_swap is keep, and the learner recomputes"):
        up.up(CONFIGS / "local.toml", setting=keep, dry_run=True)
    reported = ("learner.behaviour=reported", "learner.audited_rollouts=0")
    assert up.up(CONFIGS / "local.toml", setting=(*keep, *reported), dry_run=True) == 0


@pytest.mark.parametrize(
    ("config", "memory_gib", "processes"),
    [("qwen3-4b-math.toml", 80, ["learner", "peer-1"]), ("qwen3-4b-math.toml", 180, []), ("local.toml", 80, [])],
)
def test_processes_that_do_not_fit_their_share_are_named(
    monkeypatch: pytest.MonkeyPatch, config: str, memory_gib: int, processes: list[str]
) -> None:
    class OneGpu:
        def devices(self) -> list[tuple[str, int, int]]:
            return [("GPU", memory_gib * GIB, 0)]

    monkeypatch.setattr(up.GpuSensors, "here", OneGpu)
    parsed = up.given_config(CONFIGS / config, None, ())
    found = up._small_shares(SHARES, parsed)
    assert [line.split()[0] for line in found] == processes
    assert up._small_shares({}, parsed) == []


def a_run(root: Path, *settings: str, phase: str = "") -> RunFolder:
    """Return the folder of a run that `rollcast up` has prepared, and a coordinator has opened."""
    config = up.given_config(CONFIGS / "local.toml", None, (f"runs_folder={root}", *settings))
    folder = RunFolder(root / "earlier")
    Fleet(config, folder).prepare()
    folder.ledger.touch()
    if phase:
        folder.summary.write_text(json.dumps({"phase": phase}))
    return folder


def test_a_run_is_continued_with_its_own_settings(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "old", "coordinator.run.steps=30", "peer.engine.sglang.api_key=secret", phase="stopped")
    moved = folder.root.rename(tmp_path / "again")
    config = up.given_config(None, moved, ("coordinator.run.steps=40",))
    assert (config.coordinator.run.steps, config.runs_folder) == (40, tmp_path)
    fleet = Fleet(config, RunFolder(moved))
    fleet.prepare()
    assert not fleet.folder.summary.exists(), "it is of the part before the stop"
    written = load_config(fleet.folder.config / "coordinator.toml", CoordinatorConfig)
    assert (written.run_folder, written.run.steps) == (moved, 40)
    assert (
        load_config(fleet.folder.config / "peer-1.toml", PeerConfig).engine.sglang.api_key.get_secret_value()
        == "secret"
    )
    assert (fleet.folder.config / "up.json").stat().st_mode & 0o77 == 0
    other = up.given_config(CONFIGS / "local.toml", moved, ())
    assert (other.coordinator.run.steps, other.runs_folder) == (200, tmp_path)


def test_a_run_that_cannot_be_continued_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration is given"):
        up.given_config(None, None, ())
    with pytest.raises(ConfigError, match="is a folder") as folder_given:
        up.given_config(tmp_path, None, ())
    assert "--continue" in folder_given.value.fix
    with pytest.raises(RunFolderError, match="holds no run"):
        up.given_config(None, tmp_path, ())
    finished = a_run(tmp_path, phase="finished")
    with pytest.raises(RunOver, match="it is finished") as over:
        up.given_config(None, finished.root, ())
    assert "only one that was stopped goes on" in over.value.cause
    running = a_run(tmp_path)
    running.summary.unlink(missing_ok=True)
    descriptor = lock(running.ledger)
    with pytest.raises(StoreError, match="is in use"):
        up.given_config(None, running.root, ())
    os.close(descriptor)
    (running.config / "up.json").unlink()
    with pytest.raises(RunFolderError, match="was not started with `rollcast up`"):
        up.given_config(None, running.root, ())


def test_a_run_without_peers_says_that_it_waits_for_invited_machines() -> None:
    assert up._without_peers(up.given_config(CONFIGS / "local.toml", None, ())) == []
    (line,) = up._without_peers(up.given_config(CONFIGS / "local.toml", None, ("peers=0",)))
    assert "`rollcast invite`" in line
