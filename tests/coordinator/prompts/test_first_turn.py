from __future__ import annotations

from collections.abc import Sequence

from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.games import Reply
from coordinator.prompts.first_turn import FirstTurnScorer
from coordinator.tasks.checks.task import Problem, Score
from coordinator.verifiers.scorer import Failed, Scored, ScoreItem, Verdict
from tests.coordinator.environments.fake_pool import FakePool

GAME = Problem("game:1", "1+2=", "", {"environment": "sums", "seed": 5})


class EchoScorer:
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
