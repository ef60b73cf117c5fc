from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.core import CoordinatorCore, Restored
from coordinator.core.events.actions import Action, CloseAttempt, RecordBatch, RecordVersionsKept, SendLeases
from coordinator.core.events.events import BatchRequested, Tick
from coordinator.core.events.operator_events import StalenessLimitChanged
from coordinator.core.events.versions_kept import VersionsKept
from coordinator.core.staleness.policy import RulesInForce, StalenessFigures, StalenessRules
from rollcast.wire.ids import Step, Version
from rollcast.wire.rollouts import LeaseGrant
from tests.coordinator.core_world import World, announced, held, joined, only, received, rollout, settings, wants


def test_the_gate_is_s_unless_late_rollouts_are_corrected() -> None:
    for policy, gate in (("drop", 4), ("wait", 4), ("correct", 6)):
        rules = RulesInForce(StalenessRules(4, 1, policy, late_steps_max=2))  # type: ignore[arg-type]
        assert (rules.limit, rules.age_max, rules.publish_every_steps) == (4, gate, 1)


def test_a_raised_gate_grows_with_the_versions_that_are_kept() -> None:
    rules = RulesInForce(StalenessRules(limit=2, publish_every_steps=1))
    rules.change_limit(5, at_step=10)
    assert rules.kept == VersionsKept(age_max=5, oldest=Version(8))
    assert [rules.gate(step) for step in range(10, 16)] == [2, 3, 4, 5, 5, 5]
    rules.change_limit(1, at_step=12)
    rules.change_limit(4, at_step=13)
    assert rules.kept == VersionsKept(age_max=5, oldest=Version(8)), "versions are kept for the largest S"
    rules.change_limit(9, at_step=13)
    assert (rules.kept.oldest, rules.gate(13)) == (8, 5)


def test_what_is_kept_outlives_a_coordinator() -> None:
    raised = VersionsKept(age_max=5, oldest=Version(8))
    again = RulesInForce(StalenessRules(limit=2, publish_every_steps=1), raised, at_step=11)
    again.change_limit(5, at_step=11)
    assert (again.kept, again.gate(11)) == (raised, 3)
    configured = RulesInForce(StalenessRules(limit=7, publish_every_steps=1), raised, at_step=20)
    assert configured.kept == VersionsKept(age_max=7, oldest=Version(15)), "the configuration may raise S too"


def test_no_batch_needs_a_version_from_before_s_was_raised() -> None:
    """A peer that stays at version 2 gets no work for S = 3 at step 4, because the learner kept only 3 and newer."""
    world = World(groups_per_step=1, staleness_limit=1)
    world.core = CoordinatorCore(
        settings(groups_per_step=1, staleness_limit=1),
        Restored(versions={Version(version): 16 for version in range(5)}, recorded_batches=4),
    )
    world.handle(joined("origin", role="origin"))
    world.handle(joined("a"))
    world.handle(held("a", 2))
    actions = world.handle(StalenessLimitChanged(3))
    assert only(actions, RecordVersionsKept) == [RecordVersionsKept(VersionsKept(age_max=3, oldest=Version(3)))]
    assert only(world.handle(wants("a", 1)), SendLeases) == []
    world.handle(held("a", 3))
    assert only(world.handle(wants("a", 1)), SendLeases)


@pytest.mark.parametrize(
    ("t_bcast_s", "t_gen_s", "period_s", "kappa"),
    [
        (None, None, None, 1),
        (25.0, 5.0, None, 1),
        (25.0, 5.0, 10.0, 3),
        (1.0, 5.0, 10.0, 1),
        (45.0, 5.0, 10.0, 3),  # 5 would do for broadcasts, but S = 8 leaves room for 3
        (4000.0, 5.0, 10.0, 1),  # S is too small for any
    ],
)
def test_kappa_follows_what_broadcasts_take(
    t_bcast_s: float | None, t_gen_s: float | None, period_s: float | None, kappa: int
) -> None:
    rules = RulesInForce(StalenessRules(limit=8, publish_every_steps=0))
    assert (rules.follows_broadcasts, rules.publish_every_steps) == (True, 1)
    rules.follow(t_bcast_p95_s=t_bcast_s, t_gen_p90_s=t_gen_s, step_period_s=period_s)
    assert rules.publish_every_steps == kappa


def test_a_kappa_that_is_set_stays() -> None:
    rules = RulesInForce(StalenessRules(limit=4, publish_every_steps=2))
    rules.follow(t_bcast_p95_s=20.0, t_gen_p90_s=1.0, step_period_s=10.0)
    assert (rules.publish_every_steps, rules.follows_broadcasts) == (2, False)


def behind(policy: str, **changes: Any) -> tuple[World, LeaseGrant, list[Action]]:
    """Return a world with S = 1 and one group a step, in which the batch of step 1 is requested.

    A group of version 0 is half done at the slow peer, one of version 1 is ready: only the second can wait for step 2.
    """
    values = {"groups_per_step": 1, "staleness_limit": 1, "late_policy": policy, **changes}
    world = World(**values)
    world.core = CoordinatorCore(
        settings(**values), Restored(versions={Version(0): 16, Version(1): 16}, recorded_batches=1)
    )
    world.handle(joined("origin", role="origin"))
    for name in ("slow", "fast"):
        world.handle(joined(name))
        world.handle(held(name, 0 if name == "slow" else 1))
    world.handle(wants("slow", 2))
    (lease, _), _ = world.take("slow")
    world.handle(received("slow", 900, rollout(lease, 0, peer="slow")))
    world.handle(wants("fast", 2))
    world.finish("fast", version=1)
    return world, lease, world.handle(BatchRequested(Step(1)))


def test_drop_forms_the_batch_without_late_groups() -> None:
    world, lease, actions = behind("drop")
    assert only(actions, RecordBatch) == [RecordBatch(Step(1), (2, 3))]  # type: ignore[arg-type]
    assert CloseAttempt(lease.lease_id, 0, "stale") in actions
    assert world.core.status(0.0).staleness.late.waits == 0


def test_wait_holds_the_batch_back_until_the_late_group_is_there() -> None:
    world, lease, actions = behind("wait", late_wait_s=5.0)
    assert actions == []
    assert "held back for a group" in world.core.status(0.0).waiting_for
    world.now = 2.0
    actions = world.handle(received("slow", 901, rollout(lease, 1, peer="slow")))
    (formed,) = only(actions, RecordBatch)
    assert formed.rollout_ids == (1, 4), "the other one can wait"
    late = world.core.status(2.0).staleness.late
    assert (late.waits, late.waits_in_vain, late.waited_s) == (1, 0, 2.0)


def test_wait_ends() -> None:
    world, _, _ = behind("wait", late_wait_s=4.0)
    world.now = 3.9
    assert only(world.handle(Tick()), RecordBatch) == []
    world.now = 4.0
    assert only(world.handle(Tick()), RecordBatch) == [RecordBatch(Step(1), (2, 3))]  # type: ignore[arg-type]
    late = world.core.status(4.0).staleness.late
    assert (late.waits, late.waits_in_vain, late.waited_s) == (1, 1, 4.0)


@pytest.mark.parametrize(("late_steps", "trained"), [(0, False), (1, True)])
def test_correct_trains_late_rollouts_and_counts_them(late_steps: int, trained: bool) -> None:
    world, lease, _ = behind("correct", late_steps_max=late_steps)
    world.handle(received("slow", 901, rollout(lease, 1, peer="slow")))
    world.handle(announced(2))
    assert bool(only(world.handle(BatchRequested(Step(2))), RecordBatch)) is trained
    status = world.core.status(0.0)
    assert status.staleness.late.corrected == (2 if trained else 0)
    assert (status.staleness.limit, status.staleness.age_max) == (1, 1 + late_steps)
    assert (status.staleness_max_trained or 0) <= 1 + late_steps
    world.core.validate()


def test_the_oldest_trained_rollout_is_remembered() -> None:
    figures = StalenessFigures()
    assert figures.max_trained is None
    for age in (0, 2, 1, 1):
        figures.trained(age, 2)
    assert (figures.max_trained, figures.gate_broken_by) == (2, 0)
    assert dict(figures.histogram) == {0: 1, 1: 2, 2: 1}
    figures.trained(3, 2)
    assert figures.gate_broken_by == 1
