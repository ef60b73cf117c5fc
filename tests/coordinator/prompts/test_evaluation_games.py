from __future__ import annotations

import asyncio

import pytest

from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.games import Reply, Start, Turn
from coordinator.prompts.evaluation_games import EvaluationGames, Played, cut_newest, split_turns
from coordinator.tasks.checks.task import Problem
from rollcast.runtime.errors import MalformedMessage, NotScored
from rollcast.wire.ids import EpisodeId
from rollcast.wire.text.tokenizer import Tokenizer
from tests.coordinator.environments.fake_pool import QUESTION, FakePool

TOKENIZER = Tokenizer((), "0123456789+=?\n")
GAME = Problem("game:1", "1+2=", "", {"environment": "sums", "seed": 5, "messages": [QUESTION], "tools": []})
ASKS, WINS = Reply(({"role": "user", "content": "?"},), 0.25, False), Reply((), 1.0, True)


def tokens(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text))


def games(
    pool: FakePool, *, tokens_max: int = 16, turns_max: int = 4, kept_max: int = 4, played_max: int = 4
) -> EvaluationGames:
    limits = {"tokens_max": tokens_max, "turns_max": turns_max, "kept_max": kept_max, "played_max": played_max}
    return EvaluationGames(pool, TOKENIZER, **limits, failures_max=1)


async def second_turn(made: EvaluationGames) -> Played:
    """Play two turns, each of two tokens: EOS ends the first one, and the answer is one token."""
    first = (*tokens("3"), TOKENIZER.eos_id)
    played = await made.play(GAME, first, [])
    assert played == Played(0.25, False, tokens("?"))
    return await made.play(GAME, (*first, *played.answer, *tokens("4")), [2, 1, 1])


async def test_a_game_goes_on_with_the_newest_turn_and_ends_with_the_sum_of_its_rewards() -> None:
    pool = FakePool(ASKS, WINS)
    assert await second_turn(games(pool)) == Played(1.25, True)
    assert [turn.text for turn in pool.turns] == ["3", "4"]
    assert pool.seeds == [5], "it was opened once"
    assert len(pool.closed) == 1


async def test_a_game_that_is_not_open_any_more_is_played_again() -> None:
    pool = FakePool(ASKS, ASKS, WINS)
    made = games(pool, kept_max=0)
    assert await second_turn(made) == Played(1.25, True)
    await made.close()
    assert [turn.text for turn in pool.turns] == ["3", "3", "4"]
    assert len(set(pool.closed)) == 2


async def test_a_game_that_answers_otherwise_when_it_is_played_again_is_no_score() -> None:
    other = Reply(({"role": "user", "content": "="},), 0.25, False)
    pool = FakePool(ASKS, other, other)
    with pytest.raises(NotScored, match=r"game:1.*\n.*answered otherwise"):
        await second_turn(games(pool, kept_max=0))


@pytest.mark.parametrize(("limits", "turn_is_last"), [({"turns_max": 1}, True), ({"tokens_max": 2}, True)])
async def test_the_turn_that_reaches_a_limit_is_the_last_one(limits: dict[str, int], turn_is_last: bool) -> None:
    pool = FakePool(ASKS)
    assert await games(pool, **limits).play(GAME, tokens("31"), []) == Played(0.25, True)
    assert [turn.last for turn in pool.turns] == [turn_is_last]
    assert len(pool.closed) == 1


async def test_an_answer_that_leaves_no_room_ends_the_game() -> None:
    pool = FakePool(ASKS)
    turn = (*tokens("3"), TOKENIZER.eos_id)
    assert await games(pool, tokens_max=3).play(GAME, turn, []) == Played(0.25, True)


async def test_a_failure_is_tried_again_and_is_no_score() -> None:
    broken = EnvironmentFailed("it broke", retryable=True)
    assert await games(FakePool(broken, WINS)).play(GAME, tokens("3"), []) == Played(1.0, True)
    with pytest.raises(NotScored, match="it broke"):
        await games(FakePool(broken, broken)).play(GAME, tokens("3"), [])


async def test_games_that_wait_for_a_turn_are_closed_at_the_end() -> None:
    pool = FakePool(ASKS, ASKS)
    made = games(pool)
    await made.play(GAME, tokens("3"), [])
    await made.play(GAME, tokens("4"), [])
    assert pool.closed == []
    await made.close()
    assert len(set(pool.closed)) == 2


async def test_an_evaluation_of_any_size_opens_a_bounded_number_of_games_and_scores_all_of_them() -> None:
    class FullPool(FakePool):
        most = 0

        async def open(self, episode: EpisodeId, environment: str, seed: int, *, alone: bool = False) -> Start:
            start = await super().open(episode, environment, seed)
            self.most = max(self.most, len(self.seeds) - len(self.closed))
            await asyncio.sleep(0)
            return start

    pool = FullPool(*[WINS] * 20)
    made = games(pool, played_max=3)
    scores = await asyncio.gather(*(made.play(GAME, tokens("3"), []) for _ in range(20)))
    assert scores == [Played(1.0, True)] * 20
    assert pool.most == 3


class SlowPool(FakePool):
    async def step(self, episode: EpisodeId, turn: Turn) -> Reply:
        self.turns.append(turn)
        return await asyncio.get_running_loop().create_future()


async def test_a_game_is_closed_if_the_learner_hangs_up_meanwhile() -> None:
    pool = SlowPool()
    playing = asyncio.create_task(games(pool).play(GAME, tokens("3"), []))
    while not pool.turns:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    assert len(pool.closed) == 1


def test_the_newest_turn_ends_at_a_stop_string() -> None:
    assert cut_newest((1, 2, 3, 4, 5), [1, 1, 3], lambda turn: turn[:2]) == ((1, 2, 3, 4), [1, 1, 2])


@pytest.mark.parametrize("lengths", [[1], [1, 2], [1, 1, 2]])
def test_lengths_that_do_not_fit_are_refused(lengths: list[int]) -> None:
    with pytest.raises(MalformedMessage, match="lengths"):
        split_turns((1, 2, 3), lengths)
