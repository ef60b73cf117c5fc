from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.games import Reply, Turn
from coordinator.prompts.first_turn import FirstTurnScorer
from coordinator.tasks.checks.task import Problem, Score
from coordinator.verifiers.scorer import Failed, Scored, ScoreItem, Verdict
from rollcast.runtime.errors import TaskError
from rollcast.wire.ids import EpisodeId
from tests.coordinator.environments.fake_pool import FakePool

GAME = Problem("game:1", "1+2=", "", {"environment": "sums", "seed": 5})


class EchoScorer:
    """``stopped``: whether its start, which never ends, was cancelled."""

    def __init__(self) -> None:
        self.stopped = False

    async def start(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.stopped = True

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        return [Scored(item.key, Score(0.5, False)) for item in items]


async def test_a_problem_with_an_environment_is_played_for_one_turn() -> None:
    pool = FakePool(Reply((), 1.0, True), EnvironmentFailed("it broke", retryable=True))
    scorer = FirstTurnScorer(pool, EchoScorer())
    items = [
        ScoreItem("a", GAME, "3"),
        ScoreItem("b", Problem("sum:1", "1+2=", "3", {}), "3"),
        ScoreItem("c", GAME, "4"),
    ]
    assert await scorer.score(items) == [
        Scored("a", Score(1.0, True)),
        Scored("b", Score(0.5, False)),
        Failed("c", "exception", "it broke", True),
    ]
    assert [turn.last for turn in pool.turns] == [True, True]
    assert pool.seeds == [5, 5]
    assert all(episode < 0 for episode in pool.closed)


class BrokenPool(FakePool):
    async def start(self) -> None:
        raise TaskError("there is no such environment")


async def test_environments_that_do_not_start_stop_the_verifiers_that_are_starting() -> None:
    verifiers = EchoScorer()
    with pytest.raises(TaskError, match="no such environment"):
        await FirstTurnScorer(BrokenPool(), verifiers).start()
    assert verifiers.stopped


class SlowPool(FakePool):
    async def step(self, episode: EpisodeId, turn: Turn) -> Reply:
        self.turns.append(turn)
        return await asyncio.get_running_loop().create_future()


async def test_an_episode_is_closed_if_the_learner_hangs_up_meanwhile() -> None:
    pool = SlowPool()
    scoring = asyncio.create_task(FirstTurnScorer(pool, EchoScorer()).score([ScoreItem("a", GAME, "3")]))
    while not pool.turns:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0)
    scoring.cancel()
    await asyncio.gather(scoring, return_exceptions=True)
    assert len(pool.closed) == 1
