"""Test what becomes of rollouts whose tokens were not sampled from their seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from learner.alignment.audit import (
    BOUNDS_NATS,
    FAR,
    WIDEST_NATS,
    bounds_for,
    figures,
    findings,
    lay_out_bounds,
    without_beyond,
)
from learner.config import AuditConfig
from learner.objective.config import ObjectiveConfig
from learner.training.packing import PackedBatch, TrainingRow, pack
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids

BOUND = 0.01


def segment(peer: str, tokens: int = 2, sampler: str = "jax-cpu") -> Segment:
    return Segment(
        "assistant", Epoch(0), Version(0), PeerId(peer), pack_ids((3,) * tokens), b"\1" * tokens, sampler=sampler
    )


def batch(*segments: tuple[Segment, ...], shared: bool = False) -> tuple[list[TrainingRow], PackedBatch]:
    rows = [TrainingRow(10 + number, 0, (7, 8), own, 1.0, float(number)) for number, own in enumerate(segments)]
    return rows, pack(rows, time=12, objective=ObjectiveConfig(), completion_tokens_max=7, shared=shared)


@pytest.mark.parametrize(
    ("model", "platform", "sampler", "expected"),
    [
        ({}, "cpu", "jax-cpu", BOUNDS_NATS["jax-cpu", "float32"]),
        ({"precision": "bfloat16"}, "cpu", "jax-cpu", BOUNDS_NATS["jax-cpu", "bfloat16"]),
        ({"precision": "bfloat16"}, "gpu", "jax-cpu", WIDEST_NATS),
        ({}, "cpu", "jax-gpu", 0.5),
        ({}, "cpu", "", WIDEST_NATS),
        ({}, "cpu", "sglang", -math.inf),
        ({"precision": "fp8"}, "cpu", "jax-cpu", math.inf),
        ({"experts": 4, "experts_per_token": 1, "expert_width": 8}, "cpu", "jax-cpu", math.inf),
    ],
)
def test_a_bound_is_that_of_the_pair(model: dict[str, object], platform: str, sampler: str, expected: float) -> None:
    made = ModelConfig.model_validate({"precision": "float32", **model})
    assert bounds_for(made, platform, AuditConfig(bounds_nats={"jax-gpu": 0.5}))(sampler) == expected


def test_nothing_is_judged_where_the_owner_says_so() -> None:
    assert bounds_for(ModelConfig(), "cpu", AuditConfig(enabled=False))("jax-cpu") == math.inf
    assert bounds_for(ModelConfig(), "cpu", AuditConfig(allow_unseeded=True))("sglang") == math.inf


@pytest.mark.parametrize("shared", [False, True])
def test_a_rollout_beyond_its_bound_has_no_weight_and_the_others_keep_theirs(shared: bool) -> None:
    rows, packed = batch((segment("a"),), (segment("a"), segment("b", 3)), (segment("c"),), shared=shared)
    bounds = lay_out_bounds(rows, packed, lambda sampler: BOUND)
    assert np.array_equal(np.isfinite(bounds), packed.loss_mask)
    margins = np.where(packed.loss_mask, np.float32(BOUND / 2), np.float32(99.0))
    assert without_beyond(packed, margins, bounds, packed.loss_mask) is packed, "an honest batch is not touched"
    line, place = packed.places[1]
    margins[line, place.start + 5] = FAR * BOUND * 1.01  # the second token of b
    judged = without_beyond(packed, margins, bounds, packed.loss_mask)
    assert not judged.weights[packed.places[1]].any()
    for number in (0, 2):
        np.testing.assert_array_equal(judged.weights[packed.places[number]], packed.weights[packed.places[number]])
    assert without_beyond(packed, margins, bounds, np.zeros_like(packed.loss_mask)) is packed, "none was scored"

    margins[packed.places[2]] = np.nan  # not scored by the learner
    found = findings(rows, packed, margins, bounds)
    assert [(one.rollout_id, one.peer_id, one.tokens, one.beyond, one.far) for one in found] == [
        (10, "a", 2, 0, 0),
        (11, "a", 2, 0, 0),
        (11, "b", 3, 1, 1),
    ]
    worst = found[2]
    assert (worst.worst_at, worst.bound_nats) == (3, pytest.approx(BOUND))
    assert worst.to_pb(trained=False).worst_nats == worst.worst_nats == pytest.approx(FAR * BOUND * 1.01)
    shown = figures(found, packed, bounds)
    assert shown["audit_left_out"] == 1.0
    assert shown["audit_judged_share"] == pytest.approx(7 / 9)


def test_a_sampler_without_seeds_is_left_out_and_not_accused() -> None:
    rows, packed = batch((segment("a", sampler="sglang"),), (segment("b"),))
    bounds = lay_out_bounds(rows, packed, bounds_for(ModelConfig(), "cpu", AuditConfig()))
    margins = np.zeros(packed.tokens.shape, np.float32)
    judged = without_beyond(packed, margins, bounds, packed.loss_mask)
    assert not judged.weights[0].any()
    assert judged.weights[1].any()
    found = findings(rows, packed, margins, bounds)
    assert [one.peer_id for one in found] == ["b"]
    assert figures(found, packed, bounds)["audit_refused_share"] == 0.5
