"""Test that skipped updates are counted and reported, and end a run that cannot go on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from learner.objective.config import ObjectiveConfig
from learner.training.packing import pack
from learner.training.skipped_updates import IN_A_ROW_MAX, REPORTS_MAX, SkippedUpdates
from rollcast.runtime.errors import NotFinite
from tests.learner.tiny import TIME, tiny_row

ROWS = [tiny_row(7, (4, 5, 1), 0.0, 3), tiny_row(8, (4, 1), 1.0, 2, 3)]
PACKED = pack(ROWS, time=TIME, objective=ObjectiveConfig(), completion_tokens_max=4)


def behaviour() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    values = np.full(PACKED.tokens.shape, -0.5, np.float32)
    values[1, 3] = -np.inf
    return values


def step(watch: SkippedUpdates, number: int, skipped: float) -> None:
    values = {"loss": float("nan"), "grad_norm": float("inf"), "updates_skipped": skipped}
    watch.step_done(number, ROWS, PACKED, behaviour(), values)


def test_a_report_names_rollouts_peers_versions_and_figures(tmp_path: Path) -> None:
    step(SkippedUpdates(tmp_path / "skipped", {}), 12, 1.0)
    found = json.loads((tmp_path / "skipped" / "step-00000012.json").read_text())
    assert found["figures"] == {"loss": "nan", "grad_norm": "inf", "updates_skipped": 1.0}
    sound, spoilt = found["rollouts"]
    assert (sound["rollout_id"], sound["versions"], sound["behaviour_logprobs_not_finite"]) == (7, [3], 0)
    assert (spoilt["rollout_id"], spoilt["versions"], spoilt["behaviour_logprobs_not_finite"]) == (8, [2, 3], 1)
    assert (spoilt["behaviour_logprob_min"], spoilt["peers"], spoilt["reward"]) == ("-inf", ["p"], 1.0)


def test_reports_are_bounded_and_the_newest_are_kept(tmp_path: Path) -> None:
    watch = SkippedUpdates(tmp_path, {})
    for number in range(1, REPORTS_MAX + 4):
        step(watch, 2 * number, 1.0)
        step(watch, 2 * number + 1, 0.0)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == REPORTS_MAX
    assert names[-1] == f"step-{2 * REPORTS_MAX + 6:08}.json"


def test_several_in_a_row_end_the_run_and_a_sound_step_starts_the_count_again(tmp_path: Path) -> None:
    watch = SkippedUpdates(tmp_path, {})
    assert watch.figures() == {}
    for number in range(1, IN_A_ROW_MAX):
        step(watch, number, 1.0)
    step(watch, IN_A_ROW_MAX, 0.0)
    for number in range(1, IN_A_ROW_MAX):
        step(watch, 10 + number, 2.0)
    with pytest.raises(NotFinite, match=f"{IN_A_ROW_MAX} steps in a row, the last being step 20"):
        step(watch, 20, 1.0)
    assert watch.figures()["updates_skipped_total"] == 3 * (IN_A_ROW_MAX - 1) + 1


def test_a_learner_that_is_started_again_goes_on_after_the_steps_that_ended_it(tmp_path: Path) -> None:
    for life in range(2):
        watch = SkippedUpdates(tmp_path, {})
        for number in range(1, IN_A_ROW_MAX):
            step(watch, number, 1.0)
        if life == 0:
            with pytest.raises(NotFinite):
                step(watch, IN_A_ROW_MAX, 1.0)
    for number in range(IN_A_ROW_MAX, 2 * IN_A_ROW_MAX):
        step(watch, number, 1.0)
    with pytest.raises(NotFinite):
        step(watch, 2 * IN_A_ROW_MAX, 1.0)


def test_a_resumed_learner_goes_on_counting(tmp_path: Path) -> None:
    first = SkippedUpdates(tmp_path, {})
    for number in range(1, IN_A_ROW_MAX):
        step(first, number, 1.0)
    resumed = SkippedUpdates(tmp_path, first.figures())
    assert resumed.figures() == first.figures()
    with pytest.raises(NotFinite):
        step(resumed, IN_A_ROW_MAX, 1.0)
