from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.core.events.episode_events import (
    CloseEpisode,
    EpisodeAction,
    EpisodeEvent,
    EpisodeFailed,
    EpisodeOpened,
    EpisodeStepped,
    OpenEpisode,
    StepEpisode,
)
from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.games import Reply, Start, Turn
from coordinator.environments.player import EpisodePlayer
from coordinator.tasks.checks.task import Problem
from rollcast.runtime.errors import TaskError
from rollcast.wire.ids import EpisodeId
from rollcast.wire.text.tokenizer import Tokenizer
from tests.coordinator.environments.fake_pool import QUESTION, FakePool

TOKENIZER = Tokenizer((), "0123456789+=?\n")
EOS = TOKENIZER.eos_id
EPISODE = EpisodeId(1)
DATA = {"environment": "sums", "seed": 5, "messages": [QUESTION], "tools": []}


async def answers(pool: FakePool, *actions: EpisodeAction, data: dict[str, Any] = DATA) -> list[EpisodeEvent]:
    """Return the events that follow from actions, each carried out after the one before; a failure is raised."""
    events: asyncio.Queue[EpisodeEvent | Exception] = asyncio.Queue()

    def problem(problem_id: str) -> Problem:
        return Problem(problem_id, "1+2=", "", data)

    player = EpisodePlayer(pool, TOKENIZER, problem, events.put_nowait, events.put_nowait)
    found = []
    for action in actions:
        player.take(action)
        if not isinstance(action, CloseEpisode):
            event = await events.get()
            if isinstance(event, Exception):
                raise event
            found.append(event)
    while player._tasks:
        await asyncio.gather(*player._tasks)
    await player.close()
    return found


def step(text: str, *end: int, turn: int = 0, truncated: bool = False) -> StepEpisode:
    return StepEpisode(EPISODE, turn, (*TOKENIZER.encode(text), *end), truncated)


async def test_an_episode_is_opened_with_the_seed_of_its_problem() -> None:
    pool = FakePool()
    events = await answers(pool, OpenEpisode(EPISODE, "sums", "sums:0", seed=99), CloseEpisode(EPISODE, "done"))
    assert events == [EpisodeOpened(EPISODE, ())]
    assert pool.seeds == [5]
    assert pool.closed == [EPISODE]


async def test_a_reply_is_appended_as_tokens() -> None:
    pool = FakePool(Reply(({"role": "user", "content": "?\n"},), 0.25, False), Reply((), 1.0, True))
    events = await answers(pool, step("3", EOS), step("12", EOS, turn=1, truncated=True))
    assert events == [
        EpisodeStepped(EPISODE, 0, tuple(TOKENIZER.encode("?\n")), "user", 0.25, False),
        EpisodeStepped(EPISODE, 1, (), "user", 1.0, True),
    ]
    assert pool.turns == [Turn("3", "3", "", [], False), Turn("12", "12", "", [], True)]


async def test_a_turn_without_its_end_is_ended_by_the_reply() -> None:
    pool = FakePool(Reply(({"role": "tool", "content": "3"},), 0.0, False))
    (event,) = await answers(pool, step("1+2"))
    assert event == EpisodeStepped(EPISODE, 0, (EOS, *TOKENIZER.encode("3")), "tool", 0.0, False)


async def test_a_failure_is_no_reward() -> None:
    pool = FakePool(
        EnvironmentFailed("ValueError: x", retryable=True), Reply(({"role": "user", "content": "é"},), 1, False)
    )
    events = await answers(pool, step("3", EOS), step("3", EOS))
    assert events[0] == EpisodeFailed(EPISODE, "ValueError: x", True)
    assert isinstance(events[1], EpisodeFailed)
    assert "has no tokens" in events[1].reason


async def test_an_empty_reply_is_a_failure() -> None:
    pool = FakePool(Reply(({"role": "user", "content": ""},), 0.0, False))
    (event,) = await answers(pool, step("3", EOS))
    assert isinstance(event, EpisodeFailed)
    assert "it is empty" in event.reason


async def test_a_game_that_begins_otherwise_has_failed() -> None:
    pool = FakePool()
    data = {**DATA, "messages": [{"role": "user", "content": "1+3="}]}
    (event,) = await answers(pool, OpenEpisode(EPISODE, "sums", "sums:0", 1), data=data)
    assert isinstance(event, EpisodeFailed)
    assert not event.retryable
    assert pool.closed == [EPISODE]


async def test_workers_that_do_not_start_end_the_run() -> None:
    with pytest.raises(TaskError, match="no worker"):
        await answers(FakePool(TaskError("no worker")), step("3", EOS))


async def test_a_bug_ends_the_run_instead_of_leaving_the_core_without_an_answer() -> None:
    with pytest.raises(KeyError):
        await answers(FakePool(), OpenEpisode(EPISODE, "sums", "sums:0", 1), data={})


async def test_agents_are_shown_what_is_theirs_behind_their_own_last_turn() -> None:
    pool = FakePool(
        Reply(({"role": "user", "content": "2?"},), 0.0, False, "b", {"a": 0.5}),
        Reply(({"role": "user", "content": "3?"},), 0.0, False, "a", {}),
        Reply((), 0.0, True, "", {"b": 1.0}),
    )
    shown = {"role": "user", "content": "1?"}
    pool.start_with = Start((QUESTION,), (), ("a", "b"), "a", (shown,))
    data = DATA | {"agents": ["a", "b"], "rules": [QUESTION], "messages": [QUESTION, shown]}
    events = await answers(
        pool,
        OpenEpisode(EPISODE, "sums", "sums:0", seed=1),
        *(step("7", EOS, turn=turn) for turn in range(3)),
        data=data,
    )
    first = tuple(TOKENIZER.encode_shown([QUESTION], [{"role": "user", "content": "2?"}]))
    reply = tuple(TOKENIZER.encode_reply([{"role": "user", "content": "3?"}], ended=True))
    assert events == [
        EpisodeOpened(EPISODE, tuple(TOKENIZER.encode_shown([QUESTION], [shown])), 0),
        EpisodeStepped(EPISODE, 0, first, "user", 0.0, False, 1, (0.5, 0.0)),
        EpisodeStepped(EPISODE, 1, reply, "user", 0.0, False, 0, (0.0, 0.0)),
        EpisodeStepped(EPISODE, 2, (), "user", 0.0, True, 0, (0.0, 1.0)),
    ]


async def test_a_game_of_several_agents_has_to_begin_with_the_rules_of_its_prompt() -> None:
    pool = FakePool()
    pool.start_with = Start(({"role": "user", "content": "9="},), (), ("a", "b"), "a", (QUESTION,))
    data = DATA | {"agents": ["a", "b"], "rules": [QUESTION]}
    (event,) = await answers(pool, OpenEpisode(EPISODE, "sums", "sums:0", seed=1), data=data)
    assert isinstance(event, EpisodeFailed)
    assert not event.retryable
