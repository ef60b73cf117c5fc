from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.decisions.issuing import Pacing, Round
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.events import BatchRequested
from coordinator.core.leases.attempts import Attempt
from coordinator.core.status.status import steps_too_few
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, Step, Version
from tests.coordinator.core_world import World, announced, held, joined, wants


def world(*, turnaround_s: float, **changes: Any) -> World:
    """Return a world with attempts of this turnaround and a learner that begins a step of 60 s just now."""
    made = World(**({"groups_per_step": 2, "staleness_limit": 1} | changes))
    made.start("a")
    state = made.core._state
    for number in range(64):
        one = Attempt(LeaseId(number), FencingToken(1), GroupId(1), 0, PeerId("a"), 1e9, load=2)
        state.forecast.answered(one, turnaround_s, 100)
    for step in range(4):
        state.forecast.learner(60.0 * step, recorded=step, waits=True)
        state.forecast.learner(60.0 * step, recorded=step + 1, waits=False)
    made.now = 180.0
    return made


def may_begin(made: World) -> bool:
    state = made.core._state
    member = state.members.get(PeerId("a"))
    assert member is not None
    assert member.version is not None
    return Round(state, made.now).oldest_to_begin(member, member.version, None, len(state.book), 2) is not None


@pytest.mark.parametrize(
    ("turnaround_s", "begins"),
    [(50.0, True), (110.0, True), (130.0, False)],  # the batches are formed 60 s and 120 s from now, of steps 0 and 1
)
def test_work_is_begun_only_if_it_will_be_in_time(turnaround_s: float, begins: bool) -> None:
    assert may_begin(world(turnaround_s=turnaround_s)) is begins
    assert may_begin(world(turnaround_s=turnaround_s, pacing="count"))


def test_a_learner_that_starves_lets_one_batch_begin_whatever_is_predicted() -> None:
    made = world(turnaround_s=500.0)
    assert not may_begin(made)
    made.handle(BatchRequested(Step(0)))
    made.now += 499.0
    assert not may_begin(made)
    made.now += 1.0
    assert may_begin(made)
    made.handle(wants("a", 4))
    for name in ("b", "c"):
        made.handle(joined(name))
        made.handle(held(name, 0))
        made.handle(wants(name, 4))
    assert len(made.core._state.book) == 2, "a batch's worth"


def test_no_more_groups_are_open_than_keep_the_learner_busy() -> None:
    made = world(turnaround_s=30.0, staleness_limit=50, steps=100, lead_margin_steps=0.5)
    for number in range(9):
        made.handle(joined(f"p{number}"))
        made.handle(held(f"p{number}", 0))
        made.handle(wants(f"p{number}", 4))
    assert len(made.core._state.book) == 4  # two for a batch, one under way meanwhile, one for the margin


def test_work_waits_for_the_next_version_when_there_is_time() -> None:
    made = world(turnaround_s=60.0, staleness_limit=9, steps=100, lead_margin_steps=0.5)
    state = made.core._state

    def oldest(groups_ahead: int, made_with: int | None = None) -> int:
        known = None if made_with is None else Version(made_with)
        return Pacing(state, made.now).oldest_fresh_version(groups_ahead, known)

    state.batches.skip_to(Step(20))
    assert [oldest(ahead) for ahead in range(6)] == [11, 11, 12, 12, 13, 13], "it is not known how late versions come"
    for _ in range(16):
        state.forecast.version_came(Version(2), 200.0)  # a third of the step after the one that began with 3 done
    assert state.forecast.version_lag_steps() == pytest.approx(4.0 / 3.0)
    # 5 groups are of use: of the last batch's worth each is begun with a version of kappa + lag + spare steps at most.
    assert [oldest(ahead) for ahead in range(3)] == [11, 11, 12]
    assert [oldest(ahead) for ahead in range(3, 7)] == [17, 18, 18, 18]
    assert oldest(4, made_with=15) == 15, "a newer one makes it no younger"
    made.core._state.settings = replace(state.settings, pacing="count")
    assert oldest(4) == 13


def test_without_pacing_everything_begins() -> None:
    made = world(turnaround_s=500.0, pacing="none", steps=100)
    for number in range(9):
        made.handle(joined(f"p{number}"))
        made.handle(held(f"p{number}", 0))
        made.handle(wants(f"p{number}", 4))
    assert len(made.core._state.book) == 18


def test_a_limit_that_is_too_small_is_reported_with_what_it_lacks() -> None:
    def too_few(state: CoreState) -> int:
        return steps_too_few(state)

    assert too_few(World().core._state) == 0, "not known yet"
    made = world(turnaround_s=100.0)
    assert too_few(made.core._state) == 2  # ceil(100 / 60 + 1) = 3
    made.handle(announced(1))
    made.handle(BatchRequested(Step(0)))
    assert "S = 1 is too small by 2" in made.core.waiting(made.now).text
    assert made.core._state.newest_version == Version(1)
    assert too_few(world(turnaround_s=100.0, staleness_limit=3).core._state) == 0
