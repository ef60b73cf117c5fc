from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from coordinator.core.events.actions import Action, CloseAttempt, RecordAttempt, RecordBatch, StoreRollout
from coordinator.core.events.events import BatchRequested, Event, RolloutScored, Tick
from coordinator.core.events.restored import RestoredAttempt, RestoredGroup, RestoredRollout
from coordinator.core.staleness.age_breakdown import PARTS, AgeBreakdown, Split
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import Rollout, Segment
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import World, announced, heartbeat, held, prompt, received, wants

A = PeerId("a")


def made(lease: int, *, generate_s: float = 2.0, versions: tuple[int, ...] = (3,)) -> Rollout:
    segments = tuple(
        Segment("assistant", Epoch(0), Version(version), A, pack_ids((5,)), b"\x01") for version in versions
    )
    return Rollout(LeaseId(lease), FencingToken(lease), GroupId(1), 0, segments, "stop", generate_s)


class Story:
    """An age breakdown that observes events and actions at given seconds."""

    def __init__(self, **restored: Any) -> None:
        self.ledger = AgeBreakdown(restored.get("before", {}), restored.get("groups", ()))

    def at(self, now: float, event: Event, *actions: Action) -> None:
        self.ledger.observe(event, actions, now)
        self.ledger.validate()

    def issue(self, now: float, lease: int) -> None:
        attempt = RecordAttempt(LeaseId(lease), FencingToken(lease), GroupId(1), 0, 7, A)
        self.at(now, Tick(), attempt)

    def receive(self, now: float, lease: int, rollout_id: int, **changes: Any) -> None:
        item = made(lease, **changes)
        self.at(now, received("a", lease, item), StoreRollout(RolloutId(rollout_id), A, item))

    def batch(self, now: float, step: int, *rollouts: int) -> Split:
        self.at(now, Tick(), RecordBatch(Step(step), tuple(RolloutId(one) for one in rollouts)))
        assert self.ledger.last is not None
        return self.ledger.last


def story(**changes: Any) -> Story:
    """Return a story: version 3 is frozen at 10, announced at 12 and held at 15; a slot is issued at 16."""
    scenario = Story(**changes)
    scenario.at(10.0, BatchRequested(Step(3)))
    scenario.at(12.0, announced(3))
    scenario.at(15.0, held("a", 3))
    scenario.issue(16.0, 1)
    return scenario


def test_an_age_is_the_sum_of_its_parts() -> None:
    scenario = story()
    scenario.receive(20.0, 1, 1, generate_s=2.5)  # begun at 17.5
    scenario.at(20.5, RolloutScored(RolloutId(1), 1.0))
    split = scenario.batch(30.0, 5, 1)
    assert dict(zip(PARTS, split.seconds, strict=True)) == {
        "train": 2.0,
        "broadcast": 3.0,
        "queue": 2.5 + 9.5,
        "generate": 2.5,
        "return": 0.5,
    }
    means = split.means()
    assert (means["age_s"], means["age_steps"], means["rollouts"], means["unknown"]) == (20.0, 2.0, 1, 0)
    assert scenario.ledger.total == split
    assert scenario.ledger.newest_steps(5) == [(5, split)]
    assert scenario.ledger.parts["broadcast"].sum == 3.0


def test_the_reported_generation_time_is_bounded_by_the_attempts_time() -> None:
    scenario = story()
    scenario.receive(20.0, 1, 1, generate_s=1e9)
    scenario.at(20.0, RolloutScored(RolloutId(1), 1.0))
    assert scenario.batch(20.0, 3, 1).means()["generate_s"] == 4.0


def test_ages_without_a_split_are_counted_separately() -> None:
    scenario = story()
    scenario.receive(20.0, 2, 2)  # issued before we started
    scenario.at(20.0, RolloutScored(RolloutId(2), 1.0))
    split = scenario.batch(21.0, 4, 2, 99)
    assert (split.rollouts, split.unknown) == (0, 2)
    assert split.means()["train_s"] is None
    assert Split().means()["age_steps"] is None


def test_dropped_rollouts_are_discarded() -> None:
    scenario = story()
    scenario.issue(16.0, 2)
    scenario.receive(20.0, 1, 1)
    for lease in (1, 2, 3):
        scenario.at(21.0, Tick(), CloseAttempt(LeaseId(lease), 0, "stale"))
    assert not scenario.ledger._made
    assert not scenario.ledger._issued


def test_the_oldest_segment_counts_and_heartbeats_report_held_versions() -> None:
    scenario = Story()
    for version in (3, 4):
        scenario.at(10.0 * version, announced(version))
        scenario.at(10.0 * version + 1.0, heartbeat("a", active=version))
    scenario.issue(42.0, 1)
    scenario.receive(44.0, 1, 1, versions=(4, 3), generate_s=1.0)
    scenario.at(45.0, RolloutScored(RolloutId(1), 1.0))
    means = scenario.batch(46.0, 6, 1).means()
    assert (means["age_steps"], means["age_s"]) == (3.0, 16.0)
    assert (means["train_s"], means["broadcast_s"]) == (0.0, 1.0)


def test_sums_and_open_rollouts_continue_after_a_restart() -> None:
    before = Split((1.0, 2.0, 3.0, 4.0, 5.0), 2, 1, 7)
    assert Split.from_json(before.to_json()) == before
    came_from = RestoredAttempt(LeaseId(1), FencingToken(1), 0, A)
    rollout = RestoredRollout(RolloutId(1), came_from, Version(3), Version(3), True, b"")
    scenario = Story(before=before.to_json(), groups=(RestoredGroup(GroupId(1), prompt(1), (), (rollout,)),))
    assert scenario.batch(1.0, 5, 1) == Split(unknown=1, age_steps=2)
    assert scenario.ledger.total.unknown == 2


def test_memory_is_bounded() -> None:
    scenario = Story()
    for step in range(400):
        scenario.at(float(step), BatchRequested(Step(step)))
        scenario.at(float(step), announced(step))
        scenario.batch(float(step), step)
    ledger = scenario.ledger
    assert max(len(ledger._reached), len(ledger._versions)) <= 64
    assert len(ledger.steps) == 256


@given(st.lists(st.floats(0.0, 5.0), min_size=8, max_size=8), st.floats(0.0, 100.0), st.permutations(range(7)))
@hypothesis_settings(deadline=None, max_examples=60)
def test_parts_are_never_negative_and_sum_up_whatever_comes_when(
    pauses: list[float], generate_s: float, order: list[int]
) -> None:
    scenario, now, ends = Story(), 0.0, []
    scenario.at(0.0, announced(3))
    for what, pause in zip(order, pauses, strict=False):
        now += pause
        match what:
            case 0:
                scenario.at(now, BatchRequested(Step(3)))
            case 1:
                scenario.at(now, held("a", 3))
            case 2:
                scenario.issue(now, 1)
            case 3 if (LeaseId(1), 0) in scenario.ledger._issued:
                scenario.receive(now, 1, 1, generate_s=generate_s)
            case 4:
                scenario.at(now, RolloutScored(RolloutId(1), 1.0))
            case _:
                ends.append(now)
    split = scenario.batch(now, 4, 1)
    assert min(split.seconds) >= 0.0
    if split.rollouts:
        assert sum(split.seconds) == pytest.approx(now)


def test_the_core_keeps_it() -> None:
    world = World(groups_per_step=1)
    world.start("a")
    world.handle(wants("a", 2))
    world.now = 3.0
    world.finish("a")
    world.now = 4.0
    world.handle(BatchRequested(Step(0)))
    means = world.core.age_split.means()
    assert (means["rollouts"], means["age_s"], means["generate_s"], means["queue_s"]) == (2, 4.0, 0.5, 3.5)
