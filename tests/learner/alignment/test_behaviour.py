"""Test where behaviour log-probabilities come from, and that reports are audited."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from learner.alignment.behaviour import LOWEST, BehaviourPlan, plan_behaviour
from learner.config import BehaviourSource
from learner.objective.config import ObjectiveConfig
from learner.training.packing import PackedBatch, TrainingRow, pack
from rollcast.policy.logprobs import TokenStatistics
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids

REPORTS = (-1.0, -300.0, 4.0)


def segment(version: int, reported: tuple[float, ...] = REPORTS, mask: bytes = b"\1\1\1") -> Segment:
    return Segment("assistant", Epoch(0), Version(version), PeerId("p"), pack_ids((3, 4, 5)), mask, reported)


def batch(*segments: tuple[Segment, ...]) -> tuple[list[TrainingRow], PackedBatch]:
    rows = [TrainingRow(10 + number, 0, (7,), own, 1.0, 0.0) for number, own in enumerate(segments)]
    return rows, pack(rows, time=8, objective=ObjectiveConfig(), completion_tokens_max=7, shared=True)


def statistics(packed: PackedBatch, value: float) -> TokenStatistics:
    return TokenStatistics(*(np.full(packed.tokens.shape, value, np.float32) for _ in TokenStatistics._fields))


def plan(
    rows: list[TrainingRow],
    packed: PackedBatch,
    source: BehaviourSource = "recompute",
    own_version: int | None = 5,
    audited: int = 0,
    step: int = 5,
) -> BehaviourPlan:
    return plan_behaviour(rows, packed, source, own_version=own_version, step=step, audited_rollouts=audited)


def test_only_older_versions_are_recomputed_and_reports_stay_out_of_the_loss() -> None:
    rows, packed = batch((segment(4), segment(5)), (segment(5),))
    found = plan(rows, packed)
    assert np.array_equal(found.recomputed, packed.token_versions == 4)
    assert np.array_equal(found.own, packed.token_versions == 5)
    assert np.array_equal(found.on_policy, found.own)
    loss = found.for_loss(statistics(packed, -0.5))
    assert np.array_equal(loss, np.where(packed.token_versions == 4, np.float32(-0.5), 0.0))
    known = found.known(statistics(packed, -0.5), statistics(packed, -0.25)).logprobs
    np.testing.assert_array_equal(known[packed.loss_mask], np.where(found.own, -0.25, -0.5)[packed.loss_mask])
    assert np.all(np.isnan(known[~packed.loss_mask]))


def test_an_on_policy_batch_needs_no_pass_of_its_own() -> None:
    rows, packed = batch((segment(5),), (segment(5),))
    assert not plan(rows, packed).recomputed.any()
    assert np.array_equal(plan(rows, packed, own_version=None).recomputed, packed.loss_mask)


def test_reports_are_clamped_and_need_no_pass_where_there_are_any() -> None:
    rows, packed = batch((segment(3),), (segment(4, ()),), (segment(5, ()),), (segment(5),))
    found = plan(rows, packed, "reported")
    assert np.array_equal(found.recomputed, packed.token_versions == 4), "a rollout without a report is recomputed"
    loss = found.for_loss(statistics(packed, -0.5))
    assert loss[packed.places[0]].tolist() == [0.0, -1.0, LOWEST, 0.0]
    assert loss[packed.places[1]].tolist() == [0.0, -0.5, -0.5, -0.5]
    assert not found.on_policy[packed.places[3]].any(), "a report is taken for the current policy's tokens too"
    assert found.on_policy[packed.places[2]].sum() == 3
    assert found.own[packed.places[3]].sum() == 3, "which the training pass audits"


def test_only_a_rollouts_first_version_is_compared_where_caches_were_kept() -> None:
    rows, packed = batch((segment(4), segment(5)), (segment(5),))
    found = plan_behaviour(rows, packed, "reported", own_version=5, step=5, audited_rollouts=0, caches_kept=True)
    assert not found.own[packed.places[0]].any(), "its later tokens attend to keys and values of version 4"
    assert found.own[packed.places[1]].sum() == 3
    assert not found.recomputed.any()


def test_reports_of_tokens_that_are_not_trained_on_do_not_count() -> None:
    rows, packed = batch((segment(3, mask=b"\1\0\1"),))
    found = plan(rows, packed, "reported")
    assert np.array_equal(found.has_report, packed.loss_mask)
    assert found.for_loss(statistics(packed, -0.5))[packed.places[0]].tolist() == [0.0, -1.0, 0.0, 0.0]


@pytest.mark.parametrize("step", range(6))
def test_an_audit_recomputes_a_few_rollouts_of_one_version(step: int) -> None:
    rows, packed = batch(*((segment(number % 4),) for number in range(16)))
    found = plan(rows, packed, "reported", own_version=9, audited=3, step=step)
    assert found.from_report[packed.loss_mask].all()
    audited = [index for index, place in enumerate(packed.places) if found.recomputed[place].any()]
    assert len(audited) == 3
    assert len({index % 4 for index in audited}) == 1
    assert found.recomputed.sum() == 9
    assert np.array_equal(found.recomputed, plan(rows, packed, "reported", 9, 3, step).recomputed), "as in a replay"
    known = found.known(statistics(packed, -0.5), None).logprobs
    assert np.array_equal(np.isfinite(known), found.recomputed)


def test_audits_reach_every_rollout_in_time() -> None:
    rows, packed = batch(*((segment(number % 4),) for number in range(16)))
    plans = [plan(rows, packed, "reported", own_version=9, audited=3, step=step) for step in range(80)]
    assert np.array_equal(np.any([one.recomputed for one in plans], axis=0), packed.loss_mask)


def test_nothing_is_audited_if_nothing_is_reported() -> None:
    rows, packed = batch((segment(3, ()),), (segment(4, ()),))
    found = plan(rows, packed, "reported", audited=3)
    assert np.array_equal(found.recomputed, packed.loss_mask)
    assert not plan([replace(row, segments=()) for row in rows], packed, "reported", audited=3).has_report.any()
