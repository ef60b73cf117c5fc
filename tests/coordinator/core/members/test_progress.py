from __future__ import annotations

import math

import pytest

from coordinator.core.members.progress import LearnerProgress
from rollcast.wire.ids import Step


def test_utilisation_leaves_out_the_first_step() -> None:
    progress = LearnerProgress()
    progress.step_finished(Step(1), {"train_s": 20.0, "step_s": 21.0})
    assert progress.utilisation is None
    progress.step_finished(Step(2), {"train_s": 0.5, "behaviour_s": 0.25, "step_s": 1.0, "wait_s": 0.2})
    progress.step_finished(Step(3), {"train_s": 0.25, "behaviour_s": 0.0, "step_s": 1.0, "wait_s": 0.7})
    assert progress.utilisation == 0.5
    assert progress.train_s.percentile(100) == pytest.approx(0.8)


def test_a_replayed_step_counts_once() -> None:
    progress = LearnerProgress()
    progress.step_finished(Step(3), {"reward_mean": 0.5})
    progress.step_finished(Step(2), {"reward_mean": 0.1})
    progress.step_finished(Step(3), {"reward_mean": 0.1})
    assert progress.step == 3
    assert progress.reward_history.points() == [(3, 0.5)]


def test_newest_values_are_kept_and_a_reward_that_is_no_number_is_not_drawn() -> None:
    progress = LearnerProgress()
    progress.status_changed("evaluating", "512 problems", {"reward_before": 0.3})
    progress.step_finished(Step(1), {"reward_mean": math.nan})
    assert (progress.phase, progress.detail, progress.values["reward_before"]) == ("evaluating", "512 problems", 0.3)
    assert progress.reward_history.points() == []


def test_figures_of_peers_are_those_of_the_newest_step() -> None:
    progress = LearnerProgress()
    progress.step_finished(Step(1), {"loss": 1.0, "kl_k3:a": 0.1})
    progress.step_finished(Step(2), {"loss": 2.0, "kl_k3:b": 0.2})
    assert progress.values == {"loss": 2.0, "kl_k3:b": 0.2}
