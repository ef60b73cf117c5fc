"""Test what `rollcast up` says before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.cli import up
from rollcast.policy.sizing.device_shares import Accelerators, share_devices
from rollcast.policy.sizing.hardware import GIB

CONFIGS = Path(__file__).parents[2] / "configs"
SHARES = share_devices(Accelerators("gpu", ("0",)), 1, ["peer-1"], 0.5)


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
