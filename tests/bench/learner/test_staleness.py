"""Test training on stale rollouts, and pacing, which drops few rollouts and keeps the learner busy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from bench.learner import pacing, staleness
from bench.learner.demonstration import Course, Demonstration
from bench.machine import Outcome
from learner.config import LearnerConfig
from learner.objective.config import ALGORITHMS
from learner.training.packing import PackedBatch
from learner.training.trainer import Trainer
from rollcast.cli.files import load
from rollcast.cli.up_config import UpConfig
from rollcast.policy.logprobs import TokenStatistics
from rollcast.policy.sampling.sampler import Completion, Sampler, SampleRequest
from rollcast.runtime.errors import ConfigError

SMALL = [
    *("--set", "coordinator.run.groups_per_step=2", "--set", "coordinator.run.samples_per_group=4"),
    *("--set", "coordinator.held_out_problems=8", "--set", "learner.evaluation_problems=8"),
    *("--set", "learner.model.layers=1", "--set", "learner.model.width=16", "--set", "learner.warm_start.examples=8"),
    *("--set", "learner.warm_start.steps_max=0", "--set", "learner.warm_start.flawed_steps=0", "--steps", "2"),
]


@pytest.fixture(autouse=True)
def _no_compilation_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave jax's compilation cache alone: there is only one for the whole process."""
    monkeypatch.setattr(staleness, "use_compilation_cache", lambda _folder: None)


def bench(folder: Path, *arguments: str) -> Outcome:
    parser = argparse.ArgumentParser()
    staleness.add_arguments(parser)
    return staleness.run(parser.parse_args([*SMALL, "--cache", str(folder), *arguments]))


class CountingTrainer:
    """A trainer whose parameters are the number of steps; records which generated and which judged each batch."""

    def __init__(self) -> None:
        self.drew: list[int] = []
        self.judged: list[int] = []

    def set_params(self, _params: Any) -> None:
        self._steps = 0

    def params(self) -> Any:
        return {"steps": self._steps}

    def placed(self, params: Any) -> Any:
        return params

    def behaviour(self, params: Any, packed: PackedBatch) -> Any:
        self.judged.append(int(params["steps"]))
        return TokenStatistics(*(np.zeros(packed.tokens.shape, np.float32) for _ in TokenStatistics._fields))

    def train_step(self, _batch: PackedBatch, _behaviour: Any) -> dict[str, float]:
        self._steps += 1
        return {"kl_k3": float(self._steps)}

    def generate(self, params: Any, requests: Sequence[SampleRequest], *_rest: Any) -> list[Completion]:
        """Stand in for the sampler's method."""
        self.drew.append(int(params["steps"]))
        return [Completion((1,), (-1.0,), "stop") for _ in requests]


def test_rollouts_have_the_exact_age_and_are_judged_under_their_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(Path("configs/local.toml"), "up", SMALL[1::2][:-1])
    assert isinstance(config, UpConfig)
    trainer = CountingTrainer()
    monkeypatch.setattr(Sampler, "generate", lambda _self, *given: trainer.generate(*given))
    demonstration = Demonstration(config, 1, tmp_path)
    monkeypatch.setattr(demonstration, "_started", dict)
    course = demonstration.train(LearnerConfig(), cast(Trainer, trainer), staleness=2, steps=5)
    assert trainer.drew == [0, 0, 0, 0, 1, 2, 5], "an evaluation, five steps, an evaluation"
    assert trainer.judged == [0, 0, 0, 1, 2]
    assert course == Course(0.0, 0.0, {"kl_k3": 3.0})


@pytest.mark.slow
def test_there_is_one_figure_for_each_algorithm_and_staleness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An untrained policy is never right, so rewards are random here.
    monkeypatch.setattr(Demonstration, "_verify", lambda _self, _problem, tokens: (tokens[0] % 2, tokens[0] % 2 == 1))
    figures = bench(tmp_path, "--algorithms", "grpo", "--staleness", "0,1").figures
    assert set(figures) == {"before", "grpo_s0", "grpo_s1", "grpo_s0_kl_k3", "grpo_s1_kl_k3"}
    assert all(0.0 < figures[name] < 1.0 for name in ("grpo_s0", "grpo_s1"))
    assert figures["grpo_s0_kl_k3"] == pytest.approx(0.0, abs=1e-6), "rollouts of the newest policy"
    assert figures["grpo_s1_kl_k3"] > 1e-6, "rollouts of the policy before"
    assert len(list(tmp_path.glob("warm-start-*.npz"))) == 1, "kept for the next time"


def test_the_worst_seed_is_shown_beside_the_mean() -> None:
    courses = [Course(0.3, after, {"kl_k3": 0.1}) for after in (0.9, 0.7)]
    figures = staleness.figures_of({("truncated-is", 6): courses})
    assert figures == pytest.approx(
        {"before": 0.3, "truncated_is_s6": 0.8, "truncated_is_s6_lowest": 0.7, "truncated_is_s6_kl_k3": 0.1}
    )


def test_an_unknown_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no algorithm 'ppo2'"):
        bench(tmp_path, "--algorithms", "ppo2")


def test_every_preset_and_variant_is_a_valid_objective() -> None:
    assert set(ALGORITHMS) - {"distillation"} < set(staleness.OBJECTIVES)
    for given in staleness.OBJECTIVES.values():
        LearnerConfig.model_validate({"objective": given})  # none needs a teacher, which the demonstration lacks


@pytest.mark.sim
def test_pacing_drops_little_and_keeps_the_learner_busy() -> None:
    parser = argparse.ArgumentParser()
    pacing.add_arguments(parser)
    figures = pacing.run(parser.parse_args(["--steps", "15"])).figures
    assert figures["dropped_share"] < figures["dropped_share_none"]
    assert figures["utilisation"] > 0.9
    assert figures["utilisation_continue"] > 0.9
    assert figures["kill_goodput"] > 0.3  # in so short a run, rollouts in flight at its start can raise it above 1
    assert figures["violations_predict"] == 0
