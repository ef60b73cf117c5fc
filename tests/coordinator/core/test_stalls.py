"""Runs without progress: missing processes, and the causes of the learner's waits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.actions import FailRun, Note
from coordinator.core.events.evaluation_events import EvaluationKey, EvaluationProblem, EvaluationRequested
from coordinator.core.events.events import (
    BatchRecorded,
    BatchRequested,
    LearnerCalled,
    LearnerStatusChanged,
    PeerAccused,
    PeerLeft,
    RolloutScored,
    RolloutStored,
    RunEnded,
    Tick,
)
from coordinator.core.members.progress import WAITED
from coordinator.core.status.wait_causes import WaitCauses
from rollcast.wire.ids import PeerId, RolloutId, Step, Version
from tests.coordinator import core_world as build
from tests.coordinator.core_world import announced, joined, settings

FIX = "start the {0} or check its log; if it is only slow, raise membership.{1}"

NO_PEER_FIX = "start a peer with an invite from the run folder's secrets"


def started(*members: str, **changes: Any) -> CoordinatorCore:
    """Return a core at time 0 with an origin and these peers; the learner has called."""
    core = CoordinatorCore(settings(no_peer_timeout_s=10.0, heartbeat_timeout_s=1e6, **changes))
    core.handle(joined("origin", role="origin"), 0.0)
    for name in members:
        core.handle(joined(name), 0.0)
    core.handle(LearnerCalled(), 0.0)
    return core


def test_peers_are_waited_for_once_there_is_a_version_and_the_run_fails_once() -> None:
    core = started()
    assert core.handle(Tick(), 100.0) == []
    core.handle(announced(0), 200.0)
    core.handle(joined("a"), 208.0)
    assert core.handle(Tick(), 300.0) == []
    core.handle(PeerLeft(PeerId("a"), "gone"), 300.0)
    assert core.handle(Tick(), 309.9) == []
    assert core.handle(Tick(), 310.0) == [FailRun("RC202", "no peer for 10 s", NO_PEER_FIX)]
    assert core.handle(Tick(), 311.0) == []


def test_peers_that_are_all_quarantined_are_none() -> None:
    core = started("a", "b")
    core.handle(announced(0), 0.0)
    core.handle(PeerAccused(PeerId("b"), PeerId("a"), Version(0), 0, "", b"signed by a"), 1.0)
    assert core.handle(Tick(), 50.0)[-1:] == []
    core.handle(PeerLeft(PeerId("b"), "gone"), 50.0)
    core.handle(joined("a"), 55.0)  # a new session does not wash it clean
    assert core.waiting(56.0).text == "another peer to join, as all connected peers are quarantined"
    failure = FailRun("RC202", "every peer has been quarantined for 10 s", NO_PEER_FIX)
    assert core.handle(Tick(), 60.0)[-1:] == [failure]


def test_an_origin_that_never_comes_or_never_returns_ends_the_run() -> None:
    failure = FailRun("RC201", "no origin for 30 s", FIX.format("origin", "start_timeout_s"))
    core = CoordinatorCore(settings(start_timeout_s=30.0))
    core.handle(LearnerCalled(), 0.0)
    assert core.handle(Tick(), 29.0) == []
    assert core.handle(Tick(), 30.0) == [failure]
    core = started(start_timeout_s=30.0)
    core.handle(PeerLeft(PeerId("origin"), "gone"), 100.0)
    assert core.handle(Tick(), 129.0) == []
    assert core.handle(Tick(), 130.0) == [failure]


@pytest.mark.parametrize("ended", [False, True])
def test_a_learner_that_never_calls_ends_a_run_that_is_not_over(ended: bool) -> None:
    core = CoordinatorCore(settings(start_timeout_s=30.0, heartbeat_timeout_s=1e6))
    core.handle(LearnerStatusChanged("training", "", {}), 0.0)  # told again after a restart: not a call
    core.handle(joined("origin", role="origin"), 0.0)
    if ended:
        core.handle(RunEnded("stopped", False), 1.0)
    failure = FailRun("RC201", "no learner for 30 s", FIX.format("learner", "start_timeout_s"))
    assert core.handle(Tick(), 30.0) == ([] if ended else [failure])


def test_a_learner_that_falls_silent_ends_the_run() -> None:
    core = started(start_timeout_s=30.0, learner_timeout_s=100.0)
    assert core.handle(Tick(), 99.0) == []
    core.handle(LearnerCalled(), 99.0)
    assert core.handle(Tick(), 198.0) == []
    failure = FailRun("RC201", "the learner has not called for 100 s", FIX.format("learner", "learner_timeout_s"))
    assert core.handle(Tick(), 199.0) == [failure]


def waits(notes: list[Note]) -> list[tuple[str, list[list[object]]]]:
    assert all(note.kind == WAITED for note in notes)
    return [(note.subject, json.loads(note.detail)) for note in notes]


def test_each_stage_of_a_wait_has_its_seconds() -> None:
    world = build.World()
    core, causes = world.core, WaitCauses(world.core._state)
    for event in (build.joined("o", role="origin"), build.announced(0)):
        world.handle(event)
    core.handle(BatchRequested(Step(0)), 0.0)
    assert causes.observe(0.0) == []  # nobody there
    world.handle(build.joined("a"))
    assert causes.observe(2.0) == []  # a peer, without a version
    world.handle(build.held("a", 0))
    world.handle(build.wants("a", 8))
    assert causes.observe(5.0) == []  # it generates
    slots = [(lease, slot) for lease in world.grants["a"] for slot in lease.slots][:4]
    for number, (lease, slot) in enumerate(slots, start=1):
        core.handle(build.received("a", number, build.rollout(lease, slot.sample_index)), 9.0)
        core.handle(RolloutStored(RolloutId(number)), 9.0)
    causes.observe(9.0)
    for number in range(1, 5):
        core.handle(RolloutScored(RolloutId(number), 1.0), 10.0)
    assert causes.observe(10.0) == []  # being recorded
    core.handle(BatchRecorded(Step(0)), 10.5)
    assert waits(causes.observe(10.5)) == [
        (
            "step 1",
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


def test_an_evaluation_that_goes_first_is_the_cause() -> None:
    world = build.World()
    causes = WaitCauses(world.core._state)
    for event in (build.joined("o", role="origin"), build.announced(0), build.joined("a"), build.held("a", 0)):
        world.core.handle(event, 0.0)
    key = EvaluationKey("held_out", Version(0), problems=1, samples=1, seed=3)
    world.core.handle(EvaluationRequested(key, (EvaluationProblem(1, (5, 6)),), 60.0), 0.0)
    world.core.handle(BatchRequested(Step(0)), 0.0)
    causes.observe(0.0)
    world.core._state.batches.wanted = None
    assert waits(causes.observe(1.5)) == [("step 1", [["evaluation", "", 1.5]])]


def test_without_prompts_that_is_the_cause() -> None:
    world = build.World()
    causes = WaitCauses(world.core._state)
    for event in (build.joined("o", role="origin"), build.announced(0), build.joined("a"), build.held("a", 0)):
        world.core.handle(event, 0.0)
    world.core.handle(BatchRequested(Step(0)), 0.0)
    causes.observe(0.0)
    world.core._state.batches.wanted = None
    assert waits(causes.observe(1.5)) == [("step 1", [["prompts", "", 1.5]])]
