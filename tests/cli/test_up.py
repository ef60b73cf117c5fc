"""Test what `rollcast up` says before it starts anything."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import structlog

from rollcast.cli import up
from rollcast.cli.main import app
from rollcast.policy.sizing.device_shares import Accelerators, share_devices
from rollcast.policy.sizing.hardware import GIB
from rollcast.runtime.errors import ConfigError

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


@pytest.mark.parametrize(
    ("step", "version", "shown"), [(200, 200, "explain step 40"), (20, 19, "explain step 19"), (1, 1, "explain step 0")]
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
    found = up._small_shares(SHARES, CONFIGS / config, ())
    assert [line.split()[0] for line in found] == processes
    assert up._small_shares({}, CONFIGS / config, ()) == []
