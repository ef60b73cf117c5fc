"""Test what generating on the learner's own class of GPUs costs, beside a plan."""

from __future__ import annotations

import pytest

from capacity.questions.batch_time import batch_seconds
from capacity.questions.comparison import asynchronous, compared, step_in_words, synchronous
from capacity.questions.scenario import Scenario, scenario_of
from rollcast.runtime.errors import ConfigError
from tests.capacity.questions.test_scenario import shipped_demand, shipped_pool


def scenario(*settings: str) -> Scenario:
    short = ("demand.rollouts_per_step=32", "demand.samples_per_group=8", "demand.t_train_s=30", *settings)
    return scenario_of(shipped_demand(*short), shipped_pool(), demand_source="", pool_source="")


def test_a_batch_ends_with_its_longest_rollout() -> None:
    def alike(concurrency: float, context: float) -> float:
        return 0.01

    lengths = [100.0, 400.0, 50.0]
    assert batch_seconds(lengths, alike, concurrency_max=8, prompt_tokens=0.0) == pytest.approx(4.0)
    assert batch_seconds(lengths, alike, concurrency_max=1, prompt_tokens=0.0) == pytest.approx(5.5)
    assert batch_seconds([], alike, concurrency_max=1, prompt_tokens=0.0) == 0.0
    with pytest.raises(ValueError, match="room"):
        batch_seconds(lengths, alike, concurrency_max=0, prompt_tokens=0.0)


def test_a_step_takes_as_long_as_the_rollouts_in_flight_and_their_context_make_it() -> None:
    seen: list[tuple[float, float]] = []

    def pace(concurrency: float, context: float) -> float:
        seen.append((concurrency, context))
        return concurrency

    assert batch_seconds([10.0, 30.0, 40.0], pace, concurrency_max=2, prompt_tokens=100.0) == 10 * 2 + 20 * 2 + 20
    assert seen == [(2, 105.0), (2, 115.0), (1, 130.0)]


def test_the_learners_gpus_generate_and_train_in_turn() -> None:
    asked = scenario()
    model, learner = asked.rollouts.model, asked.central.learner
    assert model is not None
    assert learner is not None
    found = synchronous(asked, model, learner, seed=0)
    assert found.step_s > asked.demand.t_train_s + 20.0, "a rollout of 8,192 tokens takes longer than that"
    assert found.bill.usd_per_step == pytest.approx(
        (asked.demand.learner_usd_per_hour + asked.demand.storage_usd_per_hour) * found.step_s / 3600
    )
    assert found.bill.coordinator_usd_per_hour == 0.0
    more = asynchronous(asked, model, learner)
    assert more is not None
    assert more.bill.workers_usd_per_hour == pytest.approx(2.29 * int(more.machines.split()[0]))
    assert more.bill.traffic_usd_per_hour == 0.0


def test_donated_workers_are_left_out_once() -> None:
    found = compared(scenario("demand.staleness_limit=6"), seed=0)
    assert [one.way for one in found.alternatives] == ["plan", "rented", "synchronous", "asynchronous"]
    rented = found.of("rented")
    assert rented is not None
    assert rented.plan is not None
    assert all(one.worker.usd_per_hour > 0 for one in rented.plan.chosen)
    saving, rented_saving = found.saving("plan", "synchronous"), found.saving("rented", "synchronous")
    assert saving is not None
    assert rented_saving is not None
    assert 0.0 < rented_saving <= saving < 1.0


def test_a_step_that_was_not_measured_is_shown_as_scaled() -> None:
    demand = shipped_demand("demand.model=qwen3-8b")
    scaled = step_in_words(scenario_of(demand, shipped_pool(), demand_source="", pool_source=""))
    assert [part in scaled for part in ("30%", "qwen3-4b", "times 0.49")] == [True] * 3, scaled
    assert "given" in step_in_words(scenario("demand.model=qwen3-8b"))


def test_an_unknown_learner_cannot_be_compared() -> None:
    with pytest.raises(ConfigError, match="learner's GPUs"):
        compared(scenario("demand.learner_hardware=l4"), seed=0)
