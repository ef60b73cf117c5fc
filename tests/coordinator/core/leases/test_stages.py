"""Test a run whose completions grow longer from stage to stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions.rollout_checks import longest_of, malformed_rollout, unfinished
from coordinator.core.events.actions import AnswerUpload, BeginStage, ServeBatch
from coordinator.core.events.events import BatchRequested, StepFinished
from coordinator.core.leases.attempts import Attempt
from coordinator.core.leases.stages import LengthStage, StageBook
from coordinator.core.status.status import Status
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Step, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import World, announced, held, only, received, rollout, wants

STAGES = (LengthStage("short", 0, 2), LengthStage("long", 1, 4))


def completion(*tokens: int, version: int = 0) -> Segment:
    return Segment("assistant", Epoch(0), Version(version), PeerId("a"), pack_ids(tokens), b"\1" * len(tokens))


def status_of(world: World) -> Status:
    return world.core.status(world.now)


def test_the_stage_follows_from_the_step() -> None:
    assert StageBook(()).at(Step(3)) is None
    assert [StageBook(STAGES).at(Step(step)) for step in (0, 1, 9)] == [STAGES[0], STAGES[1], STAGES[1]]


CONDITIONS = (
    LengthStage("short", 0, 2),
    LengthStage("longer", 2, 4, until_reward=0.75, until_steps=6, reward_steps=2),
    LengthStage("patient", None, 8, until_steps=2),
    LengthStage("longest", None, 16),
)


def begins(rewards: Sequence[float | None]) -> list[tuple[int, Step]]:
    book = StageBook(CONDITIONS)
    found = [book.finished(Step(number), reward) for number, reward in enumerate(rewards, 1)]
    return [one for one in found if one is not None]


def test_a_stage_ends_at_a_mean_reward_of_its_own_steps() -> None:
    assert begins([1.0, 1.0, 0.5, 0.9, 0.5, 1.0]) == [(2, Step(6))], "the rewards of the stage before do not count"


def test_a_stage_ends_after_its_steps_at_the_latest() -> None:
    assert begins([0.0] * 12) == [(2, Step(8)), (3, Step(10))]
    assert begins([None] * 7 + [math.nan] * 5) == [(2, Step(8)), (3, Step(10))]


def test_steps_that_are_seen_again_change_nothing() -> None:
    book = StageBook(CONDITIONS)
    for step in (1, 2, 3, 3, 2, 3, 4, 4):
        assert book.finished(Step(step), 0.7) is None
    assert book.finished(Step(5), 0.8) == (2, Step(5))
    names = [stage.name for step in (0, 2, 4, 5, 99) if (stage := book.at(Step(step)))]
    assert names == ["short", "longer", "longer", "patient", "patient"]


def test_a_condition_lengthens_leases_and_tells_where_prompts_change() -> None:
    world = World(stages=(LengthStage("short", 0, 2, until_reward=0.5), LengthStage("long", None, 4)))
    world.start("a")
    assert world.handle(StepFinished(Step(1), {"reward_mean": 0.4})) == []
    assert status_of(world).stage == "short"
    restarted = World(stages=world.core.settings.stages)
    for one in (world, restarted):
        for step, reward in ((1, 0.4), (2, 0.6)):
            done = one.handle(StepFinished(Step(step), {"reward_mean": reward}))
    assert done == [BeginStage(1, Step(2))]
    assert (
        restarted.core.state.stages.at(Step(2)) == world.core.state.stages.at(Step(2)) == LengthStage("long", None, 4)
    )


def test_leases_grow_with_the_stage_and_rollouts_end_at_their_leases_length() -> None:
    world = World(stages=STAGES, groups_per_step=1)
    world.start("a")
    assert status_of(world).stage == "short"
    world.handle(wants("a", 2))
    slots = world.take("a")
    assert {grant.sampling.max_new_tokens for grant, _ in slots} == {2}

    def upload(number: int, slot: Any, *tokens: int, version: int = 0) -> AnswerUpload:
        lease, one = slot
        made = (completion(*tokens, version=version),)
        item = rollout(lease, one.sample_index, segments=made, finish_reason="length")
        (answer,) = only(world.handle(received("a", number, item)), AnswerUpload)
        return answer

    assert upload(1, slots[0], 5, 6, 7, 8).reason == "malformed"
    assert upload(2, slots[1], 5, 6).accepted
    world.handle(wants("a", 2))
    for number, slot in enumerate(world.take("a"), 3):
        upload(number, slot, 5, 6)
    assert only(world.handle(BatchRequested(Step(0))), ServeBatch)
    assert status_of(world).stage == "long"
    world.handle(announced(1))
    world.handle(held("a", 1))
    world.handle(wants("a", 2))
    later = world.take("a")
    assert {grant.sampling.max_new_tokens for grant, _ in later} == {4}
    assert upload(9, later[0], 5, 6, version=1).reason == "malformed"
    assert upload(10, later[1], 5, 6, 7, 8, version=1).accepted


def test_after_a_restart_a_lease_may_be_of_any_stage() -> None:
    world = World(stages=STAGES)
    world.start("a")
    world.handle(wants("a", 1))
    (lease, slot), *_ = world.take("a")
    state = world.core._state
    restored = Attempt(LeaseId(1), FencingToken(1), GroupId(1), 0, PeerId("a"), 9.0, prefix=None)
    longest = longest_of(state, restored)
    assert longest == {2, 4}
    for tokens, sound in (((5,), False), ((5, 6), True), ((5, 6, 7), False), ((5, 6, 7, 8), True)):
        item = rollout(lease, slot.sample_index, segments=(completion(*tokens),), finish_reason="length")
        assert (malformed_rollout(state, PeerId("a"), item, (), None, longest) == "") is sound
    assert unfinished(state, (completion(5, 6),), longest=frozenset({2})) != ""
    assert unfinished(state, (completion(5, 6),), longest=frozenset({4})) == ""
    assert isinstance(world.core, CoordinatorCore)
