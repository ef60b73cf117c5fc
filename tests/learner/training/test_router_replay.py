"""Test that a learner which replays an engine's routes agrees with the engine, whatever its own routers choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from learner.config import LearnerConfig, OptimiserConfig
from learner.objective.config import ObjectiveConfig
from learner.training.packing import TrainingRow, pack
from learner.training.trainer import Trainer, behaviour_by_version
from peer.engines.base import CompletionSlice, GenerateRequest, VersionState, WarmUp
from peer.engines.jax_engine import JaxEngine
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params, initial_params
from rollcast.wire.ids import PeerId
from rollcast.wire.rollouts import Sampling, Segment
from rollcast.wire.token_ids import pack_ids
from tests.peer.engines.test_jax_engine import jax_version

TWO_LAYERS = ModelConfig(
    vocabulary_size=24,
    layers=2,
    width=32,
    query_heads=2,
    key_value_heads=1,
    head_size=16,
    experts=8,
    experts_per_token=2,
    expert_width=16,
)
ONE_LAYER = TWO_LAYERS.model_copy(update={"layers": 1})
SAMPLING = Sampling(temperature=1.0, max_new_tokens=8, stop_token_ids=())
PROMPTS = [tuple(prompt) for prompt in np.random.default_rng(0).integers(2, 24, (48, 4)).tolist()]


def with_close_experts(params: Params) -> Params:
    """Return parameters whose routers find four experts each almost equally good, as some of 128 are for any token."""
    routers = {name: kernel for name, kernel in params.items() if name.endswith("router.kernel")}
    return params | {name: np.repeat(one[:, ::4], 4, axis=1) + 1e-3 * one for name, one in routers.items()}


def off_by(params: Params, share: float) -> Params:
    """Return parameters that are off by this share of themselves, for example from rounding."""
    random = np.random.default_rng(1)
    return {
        name: np.float32(value * (1.0 + share * random.standard_normal(value.shape))) for name, value in params.items()
    }


async def generated(model: ModelConfig, policies: Sequence[Params]) -> list[list[CompletionSlice]]:
    """Return the slices of each prompt's rollout, one by each policy."""
    engine = JaxEngine(concurrent_rollouts=len(PROMPTS))
    engine.expect(WarmUp(len(PROMPTS[0]), SAMPLING, router_replay=True))
    generation, slices = None, []
    for number, params in enumerate(policies):
        record, state = jax_version(number, model, params)
        await engine.load(VersionState(record, memoryview(state)))
        await engine.activate(record.version)
        if generation is None:
            generation = engine.begin([GenerateRequest(prompt, seed, SAMPLING) for seed, prompt in enumerate(PROMPTS)])
        else:
            generation.renew()
        slices.append(await generation.next_slice(SAMPLING.max_new_tokens // len(policies)))
    await engine.close()
    return [list(of_one) for of_one in zip(*slices, strict=True)]


def training_row(number: int, slices: Sequence[CompletionSlice]) -> TrainingRow:
    segments = tuple(
        Segment(
            "assistant",
            one.epoch,
            one.version,
            PeerId("p"),
            pack_ids(one.token_ids),
            b"\1" * 4,
            one.logprobs,
            one.routes,
            one.context_routes,
        )
        for one in slices
    )
    return TrainingRow(number, 0, PROMPTS[number], segments, SAMPLING.temperature, 0.0)


@pytest.mark.parametrize("model", [ONE_LAYER, pytest.param(TWO_LAYERS, marks=pytest.mark.slow)])
async def test_a_learner_agrees_with_the_engine_whose_routes_it_replays(model: ModelConfig) -> None:
    first = with_close_experts(initial_params(model, 3))
    policies = first, off_by(first, 0.003)
    rollouts = await generated(model, [off_by(policy, 0.0003) for policy in policies])
    rows = [training_row(number, slices) for number, slices in enumerate(rollouts)]
    reported = np.array([[value for part in row.segments for value in part.reported_logprobs] for row in rows])
    time = rows[0].tokens
    packed = pack(rows, time=time, objective=ObjectiveConfig(), completion_tokens_max=time, routes=model.route_shape)
    assert packed.routes is not None
    assert packed.routes_share() == 1.0
    trainer = Trainer(model, LearnerConfig(model=model, optimiser=OptimiserConfig(micro_batch_tokens=1024)))
    divergences = []
    for routes in (packed.routes, np.full_like(packed.routes, model.route_shape.no_route)):
        scored = behaviour_by_version(trainer, replace(packed, routes=routes), lambda number: policies[number])
        apart = scored.logprobs[:, -SAMPLING.max_new_tokens :] - reported
        terms = (np.expm1(apart) - apart).reshape(len(rows), len(policies), -1)
        divergences.append(terms.mean(axis=(0, 2)))
    replayed, routed_anew = divergences
    assert replayed[0] < 1e-3 * routed_anew[0]
    # The engine read all tokens again with the second policy, which it does not record.
    assert replayed[1] < 0.3 * routed_anew[1]
