from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.runtime.errors import PlanFileError
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import small_pool


def test_validate_compares_predicted_and_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(call(capsys, "plan", *small_pool(tmp_path), "--format", "json").out)
    found = call(capsys, "validate", str(path), "--steps", "5", "--tolerance", "5")
    assert found.status == 0
    for words in ("learner utilisation", "T_bcast", "mean staleness", "0 violations"):
        assert words in found.out
    document = call(capsys, "validate", str(path), "--steps", "5", "--tolerance", "0", "--format", "json")
    assert (document.status, document.json["holds"]) == (2, False)
    path.write_text(call(capsys, "plan", *small_pool(tmp_path), "--staleness", "1", "--format", "json").out)
    with pytest.raises(PlanFileError, match="without workers"):
        call(capsys, "validate", str(path))
