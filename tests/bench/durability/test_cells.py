"""Test that `bench cells` runs two real cells, of which one is killed and comes back, without a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.durability import cells
from tests.e2e.test_run import ROOT, SMALL

STEPS, GROUPS, SAMPLES = 16, 8, 4


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_with_two_cells_survives_that_one_of_them_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    settings = [
        *SMALL,
        f"coordinator.run.steps={STEPS}",
        f"coordinator.run.groups_per_step={GROUPS}",
        "coordinator.lease.deadline_s=10.0",
        "learner.evaluation_problems=8",
        "learner.warm_start.steps_max=10",
    ]
    found = cells.run_cells(ROOT / "configs" / "local.toml", tmp_path, settings, 2, 2, kill=True)
    assert (found["trained"], found["open"]) == (STEPS * GROUPS * SAMPLES, 0)
    assert (found["rollouts_lost"], found["trained_twice"]) == (0, 0)
    assert found["staleness_max_trained"] <= found["staleness_limit"]
    assert (found["cells_killed"], found["cells_restarted"]) == (1, 1)
    assert (found["uploaders"], found["cell_workers"]) == (2, 2)
    assert found["delivered"] >= found["trained"]
