"""Test the run's facts that the learner receives, and the account of its wall time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from learner.config import BehaviourSource, LearnerConfig
from learner.run_facts import RunFacts
from learner.training.trained_ids import TrainedIds
from learner.wall_time import StepTime, WallTime
from rollcast.policy.config import linear_layers
from rollcast.runtime.errors import CheckpointError, ConfigError
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import Tokenizer


class Clocks:
    """Scripted wall time and compile time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.compiled_s = 5.0

    def pass_(self, seconds: float, *, compiling: float = 0.0) -> None:
        self.now_s += seconds
        self.compiled_s += compiling

    def now(self) -> float:
        return self.now_s

    def compiled(self) -> float:
        return self.compiled_s


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_every_second_of_a_life_has_one_cause(clocks: Clocks) -> None:
    life = WallTime(clocks.now, clocks.compiled, lambda: clocks.now_s + 1e9)
    clocks.pass_(2.0)
    life.spent("starting")
    clocks.pass_(5.0, compiling=3.0)
    life.spent("warm_start")
    clocks.pass_(1.0)
    life.spent("steps")
    clocks.pass_(1.5)
    life.spent("steps")
    clocks.pass_(0.5)
    life.spent("replay")
    figures = life.figures()
    assert figures.pop("life_began_unix_s") == 1e9 + 100.0
    assert figures["life_s"] == 10.0
    assert (figures["life_warm_start_s"], figures["life_compile_s"]) == (2.0, 3.0)
    assert (figures["life_steps_s"], figures["life_replay_s"]) == (2.5, 0.5)
    assert sum(value for name, value in figures.items() if name != "life_s") == figures["life_s"]


def test_compiling_during_other_work_never_counts_more_than_the_elapsed_time(clocks: Clocks) -> None:
    life = WallTime(clocks.now, clocks.compiled)
    clocks.pass_(1.0, compiling=4.0)
    life.spent("starting")
    assert life.figures()["life_compile_s"] == life.figures()["life_s"] == 1.0


def test_the_parts_of_a_step_are_the_step(clocks: Clocks) -> None:
    step = StepTime(clocks.now, clocks.compiled)
    clocks.pass_(0.25)
    with step.part("wait_s"):
        clocks.pass_(3.0)
    with step.part("train_s"):
        clocks.pass_(2.0, compiling=1.5)
    first = step.end()
    assert first == {
        "wait_s": 3.0,
        "behaviour_s": 0.0,
        "train_s": 0.5,
        "compile_s": 1.5,
        "publish_s": 0.0,
        "checkpoint_s": 0.0,
        "other_s": 0.25,
        "step_s": 5.25,
    }
    clocks.pass_(1.0)
    assert step.end()["other_s"] == step.end()["step_s"] + 1.0


def info(**changes: Any) -> pb.RunInfo:
    values: dict[str, Any] = {
        "run_id": "run",
        "staleness_limit": 2,
        "publish_every_steps": 3,
        "groups_per_step": 4,
        "samples_per_group": 8,
        "prompt_tokens_max": 16,
        "sampling": pb.Sampling(temperature=1.0, max_new_tokens=4, stop_token_ids=[1]),
        "tokenizer_json": Tokenizer(("what is ",), "0123456789").to_json(),
        "recorded_batches": 5,
    }
    return pb.RunInfo(**(values | changes))


def test_the_tokenizer_sets_the_vocabulary_and_limits_set_the_rules() -> None:
    facts = RunFacts.of(info(), LearnerConfig())
    assert facts.model.vocabulary_size == 13
    assert facts.row_tokens == facts.rules.row_tokens == 20
    assert (facts.rules.groups_per_step, facts.rules.samples_per_group, facts.rules.staleness_limit) == (4, 8, 2)


def test_versions_that_come_too_rarely_are_refused() -> None:
    with pytest.raises(ConfigError, match="publish_every_steps 4 does not go with staleness_limit 2"):
        RunFacts.of(info(publish_every_steps=4), LearnerConfig())


def test_groups_too_small_for_the_objective_are_refused() -> None:
    with pytest.raises(ConfigError, match="grpo cannot learn from groups of 1"):
        RunFacts.of(info(samples_per_group=1), LearnerConfig())


@pytest.mark.parametrize("source", ["recompute", "reported"])
def test_caches_are_kept_only_where_nothing_is_recomputed(source: BehaviourSource) -> None:
    scored = LearnerConfig(behaviour=source)  # which audits some rollouts by default
    with pytest.raises(ConfigError, match=r"at_version_swap is keep, and the learner recomputes") as refused:
        RunFacts.of(info(at_version_swap="keep"), scored)
    assert "audited_rollouts = 0" in refused.value.fix
    facts = RunFacts.of(info(at_version_swap="keep"), LearnerConfig(behaviour="reported", audited_rollouts=0))
    assert facts.at_version_swap == "keep"
    assert RunFacts.of(info(), scored).at_version_swap == "finish"


def test_the_section_lora_becomes_part_of_the_model() -> None:
    config = LearnerConfig.model_validate({"lora": {"rank": 4, "alpha": 8.0}})
    lora = RunFacts.of(info(), config).model.lora
    assert lora is not None
    assert (lora.rank, lora.scale, lora.targets) == (4, 2.0, linear_layers(config.model))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"model": {"lora": {"targets": ["attention.key"]}}}, "set that instead"),
        ({"lora": {}, "objective": {"algorithm": "ppo"}}, "choose another objective.algorithm"),
        ({"lora": {"rank": 0}}, "greater than or equal to 1"),
    ],
)
def test_adapters_that_cannot_be_trained_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        LearnerConfig.model_validate(values)


def test_adapters_that_the_model_cannot_have_are_refused() -> None:
    config = LearnerConfig.model_validate({"lora": {}, "model": {"precision": "fp8-naive"}})
    with pytest.raises(ConfigError, match="cannot have the adapters"):
        RunFacts.of(info(), config)


def test_router_replay_needs_a_model_with_experts() -> None:
    with pytest.raises(ConfigError, match="the model has no experts"):
        RunFacts.of(info(router_replay=True), LearnerConfig())


def test_only_a_checkpoint_of_this_run_is_resumed_from() -> None:
    facts = RunFacts.of(info(), LearnerConfig())
    host = facts.host_state(0, 5, 0, Version(3), TrainedIds([(1, 9)]), {"reward_before": 0.3}, "")
    facts.check_checkpoint(host)
    for changes, problem in (
        ({"run_id": "other"}, "another run"),
        ({"epoch": 1}, "recorded 5 batches"),
        ({"model_json": "{}"}, "model or tokenizer"),
        ({"tokenizer_json": "{}"}, "model or tokenizer"),
        ({"step": 6}, "recorded 5 batches"),
    ):
        with pytest.raises(CheckpointError, match=problem):
            facts.check_checkpoint(replace(host, **changes))


def test_a_checkpoint_of_an_earlier_epoch_serves_where_the_epochs_since_are_known() -> None:
    host = RunFacts.of(info(), LearnerConfig()).host_state(0, 5, 0, Version(3), TrainedIds(), {}, "")
    starts = [pb.EpochStart(epoch=1, step_from=5, step=7), pb.EpochStart(epoch=2, step_from=9, step=9)]
    RunFacts.of(info(epoch=2, epochs=starts), LearnerConfig()).check_checkpoint(host)
    with pytest.raises(CheckpointError, match="another run"):
        RunFacts.of(info(epoch=2, epochs=starts[1:]), LearnerConfig()).check_checkpoint(host)
