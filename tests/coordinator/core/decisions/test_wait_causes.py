from __future__ import annotations

import json

from coordinator.core.decisions.wait_causes import WAITED, WaitCauses
from coordinator.core.events.actions import Note
from coordinator.core.events.events import BatchRecorded, BatchRequested, RolloutScored, RolloutStored
from rollcast.wire.ids import RolloutId, Step
from tests.coordinator import core_world as build


def waits(notes: list[Note]) -> list[tuple[str, list[list[object]]]]:
    assert all(note.kind == WAITED for note in notes)
    return [(note.subject, json.loads(note.detail)) for note in notes]


def test_each_stage_of_a_wait_has_its_seconds() -> None:
    world = build.World()
    core, causes = world.core, WaitCauses(world.core._state)
    for event in (build.joined("o", role="origin"), build.announced(0)):
        world.tell(event)
    core.handle(BatchRequested(Step(0)), 0.0)
    assert causes.observe(0.0) == []  # nobody there
    world.tell(build.joined("a"))
    assert causes.observe(2.0) == []  # a peer, without a version
    world.tell(build.held("a", 0))
    world.tell(build.wants("a", 8))
    assert causes.observe(5.0) == []  # it generates
    slots = [(lease, slot) for lease in world.grants["a"] for slot in lease.slots][:4]
    for number, (lease, slot) in enumerate(slots, start=1):
        core.handle(build.received("a", number, build.rollout(lease, slot.sample_index)), 9.0)
        core.handle(RolloutStored(RolloutId(number)), 9.0)
    causes.observe(9.0)
    for number in range(1, 5):
        core.handle(RolloutScored(RolloutId(number), 1.0, ""), 10.0)
    assert causes.observe(10.0) == []  # being recorded
    core.handle(BatchRecorded(Step(0)), 10.5)
    assert waits(causes.observe(10.5)) == [
        (
            "step 0",
            [
                ["no peer", "", 2.0],
                ["broadcast", "", 3.0],
                ["generate", "a", 4.0],
                ["score", "", 1.0],
                ["store", "", 0.5],
            ],
        )
    ]
    assert causes.observe(20.0) == []  # the learner trains


def test_a_batch_that_is_there_at_once_is_no_wait() -> None:
    world = build.World()
    causes = WaitCauses(world.core._state)
    assert causes.observe(1.0) == []
    world.core.handle(BatchRequested(Step(0)), 1.0)
    causes.observe(1.0)
    world.core._state.batches.wanted = None
    assert causes.observe(1.0) == []


def test_without_prompts_that_is_the_cause() -> None:
    world = build.World()
    causes = WaitCauses(world.core._state)
    for event in (build.joined("o", role="origin"), build.announced(0), build.joined("a"), build.held("a", 0)):
        world.core.handle(event, 0.0)
    world.core.handle(BatchRequested(Step(0)), 0.0)
    causes.observe(0.0)
    world.core._state.batches.wanted = None
    assert waits(causes.observe(1.5)) == [("step 0", [["prompts", "", 1.5]])]
