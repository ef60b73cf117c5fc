"""The learner's reports about itself: its lives, its progress, and the mismatch that it measures."""

from __future__ import annotations

import math

import pytest

from coordinator.core.members import learner_lives
from coordinator.core.members import mismatch as module
from coordinator.core.members.learner_lives import LearnerLives
from coordinator.core.members.mismatch import MismatchStatus, mismatch_status
from coordinator.core.members.progress import LearnerProgress
from learner.alignment import mismatch, sampling_check
from rollcast.wire.ids import Step


def values(began_unix_s: float, **seconds: float) -> dict[str, float]:
    return {"life_began_unix_s": began_unix_s, "life_s": sum(seconds.values()), "reward": 1.0} | {
        f"life_{name}_s": value for name, value in seconds.items()
    }


def test_one_life_is_accounted_for_as_reported() -> None:
    lives = LearnerLives()
    assert not lives.observe({"reward": 1.0})
    assert lives.observe(values(100.0, starting=10.0))
    assert lives.observe(values(100.0, starting=10.0, steps=20.0))
    assert lives.wall_s == 30.0
    assert lives.seconds() == {"starting": 10.0, "steps": 20.0, "away": 0.0}


def test_a_long_activity_is_one_life_however_often_it_is_reported() -> None:
    lives = LearnerLives()
    assert lives.observe(values(100.0, starting=0.5))
    assert not lives.observe(values(100.0, starting=0.5))  # in the middle of a warm start
    assert lives.observe(values(100.0, starting=0.5, warm_start=60.0))
    assert (len(lives.lives), lives.wall_s) == (1, 60.5)
    assert lives.seconds() == {"starting": 0.5, "warm_start": 60.0, "away": 0.0}


def test_the_phase_of_the_newest_report_and_its_beginning_are_kept() -> None:
    lives = LearnerLives()
    assert lives.observe(values(100.0, starting=0.5), "starting", "")
    assert lives.observe(values(100.0, starting=2.0), "warm_start", "step 1 of at most 30")
    assert lives.observe(values(100.0, starting=2.0, warm_start=8.0), "warm_start", "step 9 of at most 30")
    life = LearnerLives.from_json(lives.to_json()).lives[-1]
    assert (life.phase, life.detail) == ("warm_start", "step 9 of at most 30")
    assert (life.phase_since_unix_s, life.said_unix_s) == (102.0, 110.0)
    assert lives.observe(values(100.0, starting=2.0, warm_start=8.0), "evaluating", "")  # nothing accounted for yet
    assert lives.lives[-1].phase_since_unix_s == 110.0


def test_between_lives_the_learner_was_away() -> None:
    lives = LearnerLives()
    lives.observe(values(100.0, starting=10.0))
    lives.observe(values(130.0, starting=5.0, replay=10.0))
    assert not lives.observe(values(100.0, starting=10.0, steps=1.0)), "of the life before: it comes late"
    lives.observe(values(130.0, starting=5.0, replay=10.0, steps=5.0))
    assert lives.wall_s == 50.0
    assert lives.seconds() == {"starting": 15.0, "replay": 10.0, "steps": 5.0, "away": 20.0}
    assert sum(lives.seconds().values()) == lives.wall_s


def test_lives_survive_the_ledger() -> None:
    lives = LearnerLives()
    lives.observe(values(100.0, starting=10.0))
    assert LearnerLives.from_json(lives.to_json()) == lives


def test_many_lives_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_lives, "LIVES_MAX", 3)
    lives = LearnerLives()
    for number in range(1, 11):
        lives.observe(values(number * 100.0, steps=60.0))
    assert len(lives.lives) == 3
    assert lives.wall_s == 960.0
    assert lives.seconds() == {"steps": 600.0, "away": 360.0}


VALUES = {
    "mismatch_kl_k3": 0.1,
    "mismatch_ratio_mean": 1.05,
    "mismatch_outside_share": 0.05,
    "mismatch_reported_share": 0.5,
    "mismatch_peers_alarming": 1.0,
    "kl_k3:a": 0.0,
    "kl_k3:b": 0.4,
    "sampling_lacks_share": 0.01,
    "sampling_peers_alarming": 0.0,
    "lacks:a": 0.002,
}

ENGINES = [("a", "anna", "2 cores, jax"), ("b", "bert", "8 cores, vllm")]


def test_an_alarm_names_the_worst_peer_and_its_engine() -> None:
    text = (
        "log-probabilities of 1 peer differ from the learner's, most for bert (8 cores, vllm): k3-KL 0.4 nats a token"
    )
    assert mismatch_status(VALUES, ENGINES) == MismatchStatus(
        0.1, 1.05, 0.05, 0.5, 1, {"anna": 0.0, "bert": 0.4}, 0.01, 0, {"anna": 0.002}, text
    )


def test_an_alarm_names_peers_that_do_not_sample_even_where_none_reports() -> None:
    values = {"sampling_lacks_share": 0.4, "sampling_peers_alarming": 2.0, "lacks:b": 0.92, "lacks:gone": 0.3}
    found = mismatch_status(values, ENGINES)
    assert found is not None
    assert found.alarm == (
        "tokens of 2 peers are likelier than chance allows, as if sampled greedily or at a lower temperature, "
        "most for bert (8 cores, vllm): 92% of the randomness is missing"
    )
    both = mismatch_status(VALUES | values, ENGINES)
    assert both is not None
    assert both.alarm.startswith("log-probabilities of 1 peer")
    assert both.alarm.endswith(found.alarm)
    assert both.sampling_peers == {"anna": 0.002, "bert": 0.92, "gone": 0.3}


def test_there_is_no_alarm_without_counted_peers_and_no_status_without_figures() -> None:
    calm = mismatch_status({**VALUES, "mismatch_peers_alarming": 0.0}, ENGINES)
    assert calm is not None
    assert calm.alarm == ""
    assert mismatch_status({"loss": 1.0}, ENGINES) is None


def test_learner_and_coordinator_mean_the_same_keys() -> None:
    assert module.PEER_KEYS == (mismatch.PEER_KEY, sampling_check.PEER_KEY)


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


def test_newest_values_are_kept_and_a_reward_that_is_no_number_is_left_out() -> None:
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
