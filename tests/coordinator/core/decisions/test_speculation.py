from __future__ import annotations

from typing import Any

from coordinator.core.events.actions import RecordAttempt, SendLeases
from coordinator.core.events.events import BatchRequested, Tick
from coordinator.core.leases.attempts import Attempt
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, Step
from tests.coordinator.core_world import World, heartbeat, only, wants


def world(*, slow_s: float, **changes: Any) -> World:
    """Return a world whose learner waits for a group of the peer slow, while quick, which takes 10 s, is idle."""
    values = {"groups_per_step": 1, "staleness_limit": 0, "duplicate_share": 1.0, "pacing": "count"} | changes
    made = World(**values)
    made.start("slow", "quick")
    forecast = made.core._state.forecast
    for name, seconds in (("slow", slow_s), ("quick", 10.0)):
        for number in range(64):
            one = Attempt(LeaseId(number), FencingToken(1), GroupId(1), 0, PeerId(name), 1e9, load=2)
            forecast.answered(one, seconds, 100)
    made.handle(BatchRequested(Step(0)))
    made.handle(wants("slow", 2))
    made.handle(wants("quick", 2))
    assert made.take("quick") == []
    return made


def second_attempts(made: World, after_s: float) -> list[RecordAttempt]:
    made.now += after_s
    for name in ("origin", "slow", "quick"):
        made.handle(heartbeat(name, active=0))
    actions = made.handle(Tick())
    issued = only(actions, RecordAttempt)
    assert bool(issued) == bool(only(actions, SendLeases))
    return issued


def test_an_idle_peer_gets_the_slots_that_a_slow_one_delays() -> None:
    issued = second_attempts(world(slow_s=100.0), 2.0)
    assert [(one.peer_id, one.sample_index) for one in issued] == [("quick", 0), ("quick", 1)]


def test_no_second_attempt_where_the_holder_is_as_fast() -> None:
    made = world(slow_s=12.0)
    assert second_attempts(made, 1.0) == []
    assert second_attempts(made, 5.0) == []


def test_an_attempt_longer_than_any_before_counts_as_stuck() -> None:
    made = world(slow_s=12.0, heartbeat_timeout_s=1e9, lease_deadline_s=1e9)
    assert len(second_attempts(made, 100.0)) == 2
    assert second_attempts(made, 100.0) == [], "two attempts at most"


def test_second_attempts_are_a_bounded_share() -> None:
    assert second_attempts(world(slow_s=100.0, duplicate_share=0.0), 2.0) == []
    assert len(second_attempts(world(slow_s=100.0, duplicate_share=0.5), 2.0)) == 1


def test_a_batch_that_will_be_complete_in_time_needs_none() -> None:
    made = World(groups_per_step=1, staleness_limit=9, duplicate_share=1.0, pacing="count", steps=1)
    made.start("slow", "quick")
    made.handle(wants("slow", 2))
    made.handle(wants("quick", 2))
    assert second_attempts(made, 2.0) == [], "nothing is measured"
