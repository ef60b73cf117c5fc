from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.runtime.errors import PlanFileError
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import small_pool

_SHORT_STEPS = ("rollouts_per_step=24", "samples_per_group=4", "t_train_s=15", "staleness_limit=6", "update_bytes=1e8")
"""A demand of the small pool's three workers whose 45 steps are simulated within seconds."""


def test_validate_compares_the_promise_and_the_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    short = [word for one in _SHORT_STEPS for word in ("--set", f"demand.{one}")]
    path.write_text(call(capsys, "plan", *small_pool(tmp_path), *short, "--format", "json").out)
    found = call(capsys, "validate", str(path), "--steps", "5", "--tolerance", "5")
    assert found.status == 0
    for words in ("learner utilisation", "dropped share", "T_bcast p95", "mean age", "holds"):
        assert words in found.out
    plan = json.loads(path.read_text())
    plan["plan"]["expected"]["t_bcast_p95_s"] = 0.0
    path.write_text(json.dumps(plan))
    document = call(capsys, "validate", str(path), "--steps", "5", "--format", "json")
    assert (document.status, document.json["holds"]) == (2, False)
    assert any("T_bcast" in one for one in document.json["broken"])
    path.write_text(call(capsys, "plan", *small_pool(tmp_path), "--staleness", "1", "--format", "json").out)
    with pytest.raises(PlanFileError, match="without workers"):
        call(capsys, "validate", str(path))
