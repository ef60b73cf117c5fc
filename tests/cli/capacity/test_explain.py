from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.runtime.errors import ConfigError
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import small_pool


def test_an_explanation_says_what_binds_who_is_next_and_what_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = call(capsys, "explain", *small_pool(tmp_path))
    assert found.status == 0
    for words in ("what limits the set", "one more rollout/s costs", "first left out", "single changes", "prime-rl"):
        assert words in found.out
    assert "the smallest S for this pool is" in found.out


def test_a_plan_in_a_file_is_explained_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text(call(capsys, "plan", *small_pool(tmp_path), "--format", "json").out)
    document = call(capsys, "explain", str(file), "--format", "json").json
    assert document["schema"] == "rollcast.capacity.explain/1"
    assert document["binding"][0] == "rate"
    assert document["smallest_staleness"] <= 4
    assert document["one_more_dollar"]["rollouts_per_second"] > 0


def test_the_largest_model_of_a_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "explain", *small_pool(tmp_path), "--largest-model")
    assert "the largest model of the catalogue with a set is" in found.out
    with pytest.raises(ConfigError, match="needs the pool"):
        call(capsys, "explain", str(tmp_path / "plan.json"), "--largest-model")


def test_an_infeasible_plan_has_remedies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = small_pool(tmp_path)
    found = call(capsys, "explain", *options, "--staleness", "1")
    assert (found.status, "S: 1 -> 2" in found.out) == (2, True)
    document = call(capsys, "explain", *options, "--staleness", "1", "--format", "json").json
    assert not document["feasible"]
    assert "S: 1 -> 2" in document["remedies"]
