"""Test that changes which belong together reach the ledger in one call, and are answered only once that is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.actions import Action, CloseAttempt, CommitTogether, DropTurns, StoreEpisode
from coordinator.core.events.events import (
    ArrivalsBegan,
    ArrivalsEnded,
    Event,
    LearnerCalled,
    RolloutStored,
    Tick,
    WorkRequested,
)
from coordinator.ledger.store import ProblemReward, RunStore
from coordinator.metrics.sinks.sink import Sink
from coordinator.prompts.problems import Problems
from coordinator.shell.sessions import Sessions
from coordinator.shell.shell import Shell
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import GroupId, LeaseId, RolloutId
from tests.coordinator.stored_work import PEER, rollout

EPISODES = tuple(StoreEpisode(RolloutId(7 + side), PEER, "game:1", rollout(1 + side), 0.25 + side) for side in (0, 1))


class ScriptedCore:
    """Answers the first event with these actions, and notes every event."""

    def __init__(self, *actions: Action) -> None:
        self._actions: Sequence[Action] = actions
        self.events: list[Event] = []

    def handle(self, event: Event, now: float) -> Sequence[Action]:
        self.events.append(event)
        actions, self._actions = self._actions, ()
        return actions


class Ledger:
    """Notes what is committed together; ``change`` is done once it is durable."""

    def __init__(self) -> None:
        self.committed: list[tuple[CommitTogether, ProblemReward | None]] = []
        self.change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def commit_together(self, action: CommitTogether, *, problem: ProblemReward | None = None) -> asyncio.Future[None]:
        self.committed.append((action, problem))
        return self.change


def shell_of(core: ScriptedCore, ledger: Ledger, rewarded: list[tuple[str, float]]) -> Shell:
    """Return a shell whose problems keep figures, the newest of which has counted all rewards before it."""

    def count(problem_id: str, reward: float) -> ProblemReward:
        rewarded.append((problem_id, reward))
        return ProblemReward(problem_id, len(rewarded), reward, 0.0)

    unused: Any = SimpleNamespace(send=lambda peer_id, message: None)
    return Shell(
        core=cast(CoordinatorCore, core),
        ledger=cast(RunStore, ledger),
        problems=cast(Problems, SimpleNamespace(rewarded=count)),
        sessions=cast(Sessions, unused),
        sink=cast(Sink, unused),
        clock=lambda: 0.0,
    )


async def test_the_episodes_of_a_game_are_one_transaction_and_each_is_answered_once_it_is_durable() -> None:
    action = CommitTogether(EPISODES)
    core, ledger, rewarded = ScriptedCore(action), Ledger(), list[tuple[str, float]]()
    shell = shell_of(core, ledger, rewarded)
    shell.apply(Tick())
    assert rewarded == [("game:1", 0.25), ("game:1", 1.25)]
    assert ledger.committed == [(action, ProblemReward("game:1", 2, 1.25, 0.0))], "the figures after both rewards"
    assert core.events == [Tick()], "nothing is durable yet"
    ledger.change.set_result(None)
    await asyncio.sleep(0)
    assert core.events == [Tick(), RolloutStored(RolloutId(7)), RolloutStored(RolloutId(8))]


async def test_turns_that_are_given_up_together_have_no_reward_and_no_answer() -> None:
    action = CommitTogether((CloseAttempt(LeaseId(1), 0, "revoked"), DropTurns(GroupId(1), 0)))
    core, ledger, rewarded = ScriptedCore(action), Ledger(), list[tuple[str, float]]()
    shell_of(core, ledger, rewarded).apply(Tick())
    ledger.change.set_result(None)
    await asyncio.sleep(0)
    assert (ledger.committed, rewarded, core.events) == ([(action, None)], [], [Tick()])


async def test_a_transaction_that_the_ledger_refuses_ends_the_run_and_answers_nothing() -> None:
    core, ledger = ScriptedCore(CommitTogether(EPISODES)), Ledger()
    shell = shell_of(core, ledger, [])
    shell.apply(Tick())
    ledger.change.set_exception(StoreError("the disk is full"))
    with pytest.raises(StoreError, match="the disk is full"):
        raise await shell.failure
    assert core.events == [Tick()]


async def test_events_of_one_turn_are_applied_together_and_in_their_place_among_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.shell.shell.GATHER_S", 0.0)
    core = ScriptedCore()
    shell = shell_of(core, Ledger(), [])
    asked = [WorkRequested(PEER, slots) for slots in range(4)]
    shell.apply_soon(asked[0])
    assert core.events == []
    await asyncio.sleep(0)
    assert core.events == asked[:1]
    shell.apply_soon(asked[1])
    shell.apply_soon(asked[2])
    shell.apply(LearnerCalled())
    shell.apply_soon(asked[3])
    await asyncio.sleep(0)
    together = [ArrivalsBegan(), *asked[1:3], ArrivalsEnded()]
    assert core.events == [asked[0], *together, LearnerCalled(), asked[3]]


async def test_under_load_events_gather_and_only_results_of_ordered_work_overtake_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.shell.shell.GATHER_S", 600.0)
    core, ledger = ScriptedCore(CommitTogether(EPISODES)), Ledger()
    shell = shell_of(core, ledger, [])
    asked = [WorkRequested(PEER, slots) for slots in range(3)]
    shell.apply_soon(asked[0])
    await asyncio.sleep(0)
    assert core.events == asked[:1], "the first one waits for no other"
    shell.apply_soon(asked[1])
    shell.apply_soon(asked[2])
    ledger.change.set_result(None)
    await asyncio.sleep(0)
    stored = [RolloutStored(RolloutId(7)), RolloutStored(RolloutId(8))]
    assert core.events == [asked[0], *stored]
    shell.apply(LearnerCalled())
    assert core.events == [asked[0], *stored, ArrivalsBegan(), *asked[1:], ArrivalsEnded(), LearnerCalled()]


async def test_a_round_of_very_many_events_does_not_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.shell.shell.GATHER_S", 600.0)
    monkeypatch.setattr("coordinator.shell.shell.ARRIVED_MOST", 3)
    core = ScriptedCore()
    shell = shell_of(core, Ledger(), [])
    asked = [WorkRequested(PEER, slots) for slots in range(6)]
    shell.apply_soon(asked[0])
    await asyncio.sleep(0)
    for one in asked[1:3]:
        shell.apply_soon(one)
    await asyncio.sleep(0)
    assert core.events == asked[:1]
    for one in asked[3:5]:
        shell.apply_soon(one)
    await asyncio.sleep(0)
    assert core.events == [asked[0], ArrivalsBegan(), *asked[1:5], ArrivalsEnded()]
    shell.apply_soon(asked[5])
    await asyncio.sleep(0)
    assert core.events[-1] == ArrivalsEnded(), "the next round waits again"


async def test_events_that_another_one_took_along_leave_no_timer_that_applies_later_ones_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.shell.shell.GATHER_S", 600.0)
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def noted_call_at(when: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_at(when, callback, *arguments))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", noted_call_at)
    shell = shell_of(ScriptedCore(), Ledger(), [])
    for slots in range(3):  # of which the first is applied at once
        shell.apply_soon(WorkRequested(PEER, slots))
        await asyncio.sleep(0)
        shell.apply(LearnerCalled())
    shell.apply_soon(WorkRequested(PEER, 3))
    assert [timer.cancelled() for timer in timers] == [True, True, False]
