"""Test what `rollcast up` says before it starts anything."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import structlog

from rollcast.cli import up
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
