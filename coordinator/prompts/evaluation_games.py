"""Play the episodes of evaluations: the answer to a completion whose problem has an environment.

Whoever samples the completion sends all of it each time, so nothing is lost if either side restarts. A game is kept
open between two turns, under everything that was said in it, and gets only the newest turn. If it is not open any more,
it is opened again with the same seed and is sent the earlier turns, which it has to answer as before.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.player import begin_game, reply_of, turn_of
from coordinator.environments.pool import EnvironmentPool
from coordinator.tasks.checks.task import Problem
from rollcast.runtime.errors import MalformedMessage, NotScored
from rollcast.wire.ids import EpisodeId
from rollcast.wire.text.tokenizer import TextTokenizer

IDLE_S = 300.0
"""Seconds for which a game waits for its next turn before it is closed."""

Tokens = tuple[int, ...]
Cut = Callable[[Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Played:
    """What an environment made of a completion: the reward so far, and the tokens to append unless it has ended."""

    reward: float
    ended: bool
    answer: Tokens = ()
    by_tools: bool = False


@dataclass(slots=True)
class _Game:
    episode: EpisodeId
    reward: float = 0.0
    idle: asyncio.TimerHandle | None = None


class EvaluationGames:
    """Plays completions with the environments of their problems.

    Args:
        tokens_max: tokens of the longest completion, answers included.
        turns_max: most turns of a completion.
        kept_max: games that stay open between two turns.
        played_max: games that take a turn at once; more of them wait, which takes as long as a turn does.
        failures_max: how often in a row an environment may fail before the completion counts as not scored.
    """

    def __init__(
        self,
        pool: EnvironmentPool,
        tokenizer: TextTokenizer,
        *,
        tokens_max: int,
        turns_max: int,
        kept_max: int,
        played_max: int,
        failures_max: int,
    ) -> None:
        self._pool = pool
        self._tokenizer = tokenizer
        self._tokens_max = tokens_max
        self._turns_max = turns_max
        self._kept_max = kept_max
        self._turns = asyncio.Semaphore(played_max)
        self._failures_max = failures_max
        self._kept: OrderedDict[tuple[str, Tokens], _Game] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)

    async def play(self, problem: Problem, tokens: Tokens, turn_lengths: Sequence[int]) -> Played:
        """Return what the environment makes of a completion.

        Args:
            tokens: all turns and answers so far.
            turn_lengths: see pb.Completion.

        Raises:
            MalformedMessage: the lengths are not those of the tokens.
            NotScored: the environment failed each time.
        """
        parts = split_turns(tokens, turn_lengths)
        for left in range(self._failures_max, -1, -1):
            try:
                async with self._turns:
                    return await self._play(problem, tokens, parts)
            except EnvironmentFailed as failure:
                if not (failure.retryable and left):
                    what = f"an episode of {problem.problem_id} could not be played"
                    raise NotScored(what, cause=failure.reason) from failure
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Close every game that waits for a turn."""
        while self._kept:
            self._close_kept(next(iter(self._kept)))
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _play(self, problem: Problem, tokens: Tokens, parts: Sequence[Tokens]) -> Played:
        turn = parts[-1]
        game = self._take((problem.problem_id, tokens[: len(tokens) - len(turn)]))
        is_kept = False
        try:
            if game is None:
                game = _Game(EpisodeId(-next(self._numbers)))  # episodes of the core have positive ids
                await begin_game(self._pool, game.episode, problem)
                for number in range(0, len(parts) - 1, 2):
                    played = await self._step(game, parts[number], last=False)
                    if played.ended or played.answer != parts[number + 1]:
                        raise EnvironmentFailed("a game that was played again answered otherwise", retryable=True)
            last = len(tokens) >= self._tokens_max or len(parts) // 2 + 1 >= self._turns_max
            played = await self._step(game, turn, last=last)
            if last or played.ended or len(tokens) + len(played.answer) >= self._tokens_max:
                return Played(game.reward, ended=True)
            self._keep((problem.problem_id, (*tokens, *played.answer)), game)
            is_kept = True
            return played
        finally:  # also if the learner hangs up meanwhile
            if game is not None and not is_kept:
                await self._pool.close_episode(game.episode)

    async def _step(self, game: _Game, turn: Tokens, *, last: bool) -> Played:
        text = self._tokenizer.decode(turn)
        reply = await self._pool.step(game.episode, turn_of(text, self._tokenizer.tool_format, last=last))
        game.reward += reply.reward
        answer, role = reply_of(self._tokenizer, reply, turn)
        return Played(game.reward, reply.done, answer, role == "tool")

    def _take(self, key: tuple[str, Tokens]) -> _Game | None:
        game = self._kept.pop(key, None)
        if game is not None and game.idle is not None:
            game.idle.cancel()
        return game

    def _keep(self, key: tuple[str, Tokens], game: _Game) -> None:
        if key in self._kept:  # two evaluations of one version are under way
            self._close_kept(key)
        game.idle = asyncio.get_running_loop().call_later(IDLE_S, self._close_kept, key)
        self._kept[key] = game
        while len(self._kept) > self._kept_max:
            self._close_kept(next(iter(self._kept)))

    def _close_kept(self, key: tuple[str, Tokens]) -> None:
        game = self._take(key)
        if game is not None:
            task = asyncio.create_task(self._pool.close_episode(game.episode), name="close a game")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def split_turns(tokens: Tokens, turn_lengths: Sequence[int]) -> list[Tokens]:
    """Return turn, answer, turn, ..., turn of a completion.

    Raises:
        MalformedMessage: the lengths are not those of the tokens.
    """
    lengths = list(turn_lengths) or [len(tokens)]
    if sum(lengths) != len(tokens) or len(lengths) % 2 == 0:
        raise MalformedMessage("the lengths of a completion's turns are not those of its tokens")
    ends = itertools.accumulate(lengths)
    return [tokens[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def cut_newest(tokens: Tokens, turn_lengths: Sequence[int], cut: Cut) -> tuple[Tokens, list[int]]:
    """Return a completion and its lengths with its newest turn cut where it ends, as at a stop string.

    Raises:
        MalformedMessage: the lengths are not those of the tokens.
    """
    parts = split_turns(tokens, turn_lengths)
    parts[-1] = tuple(cut(parts[-1]))
    return tuple(itertools.chain.from_iterable(parts)), [len(part) for part in parts]
