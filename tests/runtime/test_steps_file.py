from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.runtime.errors import StoreError
from rollcast.runtime.steps_file import StepsFile, last_step


def test_what_is_no_step_is_passed_over_and_a_file_that_shrank_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n[1]\n{"no": 1}\n{"step": "x"}\n' + "[" * 100_000 + "\n")
    file = StepsFile(path)
    file.refresh()
    assert file.steps == [{"step": 1}]
    assert last_step(path) == 1
    path.write_text('{"step": 7}\n')
    file.refresh()
    assert file.steps == [{"step": 7}]


def test_steps_share_the_names_of_their_figures(tmp_path: Path) -> None:
    """A coordinator keeps the steps of a run for its dashboard, and names take more memory than the figures."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "reward_mean": 0.5}\n{"step": 2, "reward_mean": 0.5}\n')
    file = StepsFile(path)
    file.refresh()
    first, second = file.steps
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_a_missing_file_has_no_steps_and_an_unreadable_one_is_an_error(tmp_path: Path) -> None:
    file = StepsFile(tmp_path / "none")
    file.refresh()
    assert (file.steps, last_step(file.path)) == ([], None)
    with pytest.raises(StoreError, match="cannot read the steps"):
        StepsFile(tmp_path).refresh()


@pytest.mark.parametrize("figure", ["x", "x" * 100_000])  # shorter and longer than what is read from the end at first
def test_the_last_step_is_that_of_the_last_whole_line(tmp_path: Path, figure: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("")
    assert last_step(path) is None
    lines = [json.dumps({"step": step, "figure": figure}) for step in (1, 2, 3)]
    path.write_text("\n".join(lines))
    assert last_step(path) == 2
    path.write_text("\n".join(lines) + "\n")
    assert last_step(path) == 3
