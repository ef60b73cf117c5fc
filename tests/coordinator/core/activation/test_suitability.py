from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.model.demand import Demand
from capacity.model.workers import Speed, Worker
from coordinator.core.activation.suitability import (
    THIS_MACHINE,
    Offer,
    Question,
    in_words,
    offered_worker,
    question_of,
    run_model,
    suitability_of,
)
from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.events import Started
from tests.coordinator.core_world import SAMPLING, heartbeat, joined, settings

GIB = 2.0**30
DEMAND = Demand(
    rollouts_per_step=256,
    t_train_s=60.0,
    staleness_limit=3,
    publish_every_steps=1,
    update_bytes=200e6,
    learner_upload_bytes_per_second=100e6,
)
OTHERS = tuple(
    Worker(
        worker_id=f"w{number}",
        speeds=(Speed(64, 1.5, 60.0, 40.0),),
        usd_per_hour=0.0,
        upload_bytes_per_second=25e6,
        download_bytes_per_second=50e6,
    )
    for number in range(3)
)
QUESTION = Question(
    staleness_limit=3,
    demand=DEMAND,
    workers=OTHERS,
    tokens_per_rollout=1000.0,
    tokens_measured=True,
    spread=1.5,
    unknown_upload_bytes_per_s=1e6,
    unknown_download_bytes_per_s=1e6,
)
FAST = Offer(
    tokens_per_s=2000.0,
    concurrent_rollouts=64,
    upload_bytes_per_s=5e6,
    download_bytes_per_s=20e6,
    memory_bytes=24 * GIB,
)
MODEL = run_model(8_000_000_000, 4e9, {"4b": 4e9, "8b": 8e9, "14b": 14.7e9, "235b": 235e9})


def test_a_machine_meets_s_with_slack_by_the_planners_rule() -> None:
    found = suitability_of(QUESTION, FAST, MODEL)
    # 64 at once at 2 rollouts/s: 32 s each, p90 48 s; a copy takes about 10 s; S - kappa leaves 120 s.
    assert found.meets
    assert found.t_gen_p90_s == pytest.approx(48.0)
    assert found.budget_s == pytest.approx(120.0)
    assert found.slack_share == pytest.approx(1.0 - (48.0 + (found.t_bcast_s or 0.0)) / 120.0)
    assert found.staleness_needed == 2
    assert found.share_of_need == pytest.approx(2.0 * 60.0 / 256)
    assert found.sentence.startswith("meets S=3 for the 4B model with 5")
    assert found.sentence.endswith("; not 8b: too little memory")
    assert found.what_would_help == ()
    assert any("rollouts an hour, 47% of what the run needs" in line for line in found.reasons)


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        (replace(FAST, tokens_per_s=200.0), "generation is too slow"),
        (replace(FAST, download_bytes_per_s=1e6), "download too slow"),
    ],
)
def test_what_would_help_does(offer: Offer, why: str) -> None:
    found = suitability_of(QUESTION, offer, MODEL)
    assert found.meets is False
    assert (found.slack_share or 0.0) < 0.0
    assert why in found.sentence
    assert f"S={found.staleness_needed} would suffice" in found.sentence
    more = replace(QUESTION, demand=replace(DEMAND, staleness_limit=found.staleness_needed or 0))
    assert suitability_of(more, offer, MODEL).meets
    less = replace(QUESTION, demand=replace(DEMAND, staleness_limit=(found.staleness_needed or 0) - 1))
    assert not suitability_of(less, offer, MODEL).meets
    assert len(found.what_would_help) >= 2


def test_a_model_that_does_not_fit_is_reported_before_anything_else() -> None:
    found = suitability_of(replace(QUESTION, demand=None), replace(FAST, memory_bytes=8 * GIB), MODEL)
    assert (found.meets, found.sentence) == (
        False,
        "cannot hold the 4B model: 8.0 GiB of memory, 14.9 GiB needed",
    )


def test_weights_under_adapters_are_held_and_received_once() -> None:
    offer = replace(FAST, memory_bytes=8 * GIB)
    frozen = replace(MODEL, frozen=True)
    found = suitability_of(QUESTION, offer, frozen)
    assert found.meets
    assert "before its first rollout it receives the whole weights once: 7.5 GiB in 400 s" in found.reasons
    small = suitability_of(QUESTION, offer, replace(frozen, state_bytes=1.2e6))
    assert any("the whole weights once: 1.2 MB in" in reason for reason in small.reasons)
    assert not suitability_of(QUESTION, offer, MODEL).meets
    needs = suitability_of(QUESTION, replace(FAST, memory_bytes=4 * GIB), frozen)
    assert needs.sentence == "cannot hold the 4B model: 4.0 GiB of memory, 7.5 GiB needed"


def test_there_is_no_judgement_before_the_run_has_timed_its_steps() -> None:
    found = suitability_of(replace(QUESTION, demand=None), FAST, MODEL)
    assert found.meets is None
    assert "not timed enough" in found.sentence
    assert suitability_of(QUESTION, replace(FAST, tokens_per_s=0.0), MODEL).meets is None


def test_links_that_were_not_measured_are_assumed_as_the_run_assumes_them() -> None:
    me = offered_worker(QUESTION, Offer(tokens_per_s=10.0, concurrent_rollouts=2))
    assert (me.worker_id, me.upload_bytes_per_second, me.download_bytes_per_second) == (THIS_MACHINE, 1e6, 1e6)


def test_a_run_that_has_just_begun_judges_by_its_settings() -> None:
    question = question_of(CoreState(settings()), 0.0)
    assert question.demand is None
    assert question.workers == ()
    assert not question.tokens_measured
    assert question.tokens_per_rollout == settings().sampling.max_new_tokens


def test_rollouts_are_as_long_as_the_runs_own_peers_generate_them(monkeypatch: pytest.MonkeyPatch) -> None:
    core = CoordinatorCore(settings(sampling=replace(SAMPLING, max_new_tokens=500)))
    core.handle(Started(), 0.0)
    for name, tokens_per_s in (("a", 300.0), ("b", 100.0), ("idle", 0.0)):
        core.handle(joined(name), 0.0)
        core.handle(heartbeat(name, tokens_per_second=tokens_per_s), 0.0)
    monkeypatch.setattr(core.state.forecast, "slots_per_s", lambda peer, now: 2.0)
    question = question_of(core.state, 0.0)
    assert (question.tokens_per_rollout, question.tokens_measured) == (100.0, True)
    assert len(question.workers) == 3


@pytest.mark.parametrize(("count", "words"), [(4e9, "4B"), (29e4, "290K"), (14.7e9, "15B"), (12, "12")])
def test_sizes_in_words(count: float, words: str) -> None:
    assert in_words(count) == words
