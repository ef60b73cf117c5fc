"""Carry out the core's actions on episodes: tokens to text, text to the environment, and its reply back to tokens.

See coordinator/core/events/episode_events.py for the protocol. The reply is rendered with the chat template as tokens
to append: nothing that is in an episode already is rendered or tokenised again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, assert_never

from coordinator.core.events.episode_events import (
    CloseEpisode,
    EpisodeAction,
    EpisodeEvent,
    EpisodeFailed,
    EpisodeOpened,
    EpisodeStepped,
    ObservationRole,
    OpenEpisode,
    StepEpisode,
)
from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.games import Message, Reply, Turn
from coordinator.environments.pool import EnvironmentPool
from coordinator.tasks.checks.task import Problem
from rollcast.runtime.errors import TaskError
from rollcast.wire.ids import EpisodeId
from rollcast.wire.text.tokenizer import TextTokenizer
from rollcast.wire.text.tool_calls import ToolFormat, parse_turn

REASON_LENGTH_MAX = 1_000  # characters of a failure's reason: the end of a traceback says the most


class EpisodePlayer:
    """Plays the episodes that the core opens; its owner must ``close`` it, before the pool.

    Args:
        problem: returns a sampled problem by its id.
        apply: receives the answers as events.
        fail: receives an error that ends the run.
    """

    def __init__(
        self,
        pool: EnvironmentPool,
        tokenizer: TextTokenizer,
        problem: Callable[[str], Problem],
        apply: Callable[[EpisodeEvent], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._pool = pool
        self._tokenizer = tokenizer
        self._problem = problem
        self._apply = apply
        self._fail = fail
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, action: EpisodeAction) -> None:
        """Carry out an action; its answer is applied later."""
        match action:
            case OpenEpisode():
                self._run(action, self._open(action))
            case StepEpisode():
                self._run(action, self._step(action))
            case CloseEpisode():
                self._run(action, self._close(action))
            case _:
                assert_never(action)

    async def close(self) -> None:
        """Cancel what is in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, action: EpisodeAction, work: Coroutine[Any, Any, EpisodeEvent | None]) -> None:
        task = asyncio.create_task(self._answer(action, work), name="episode")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, action: EpisodeAction, work: Coroutine[Any, Any, EpisodeEvent | None]) -> None:
        try:
            event = await work
        except EnvironmentFailed as failure:
            event = EpisodeFailed(action.episode, failure.reason[-REASON_LENGTH_MAX:], failure.retryable)
        except Exception as error:  # no worker starts any more, or a bug: the core would wait for an answer in vain
            self._fail(error)
            return
        if event is not None:
            self._apply(event)

    async def _open(self, action: OpenEpisode) -> EpisodeOpened:
        await begin_game(self._pool, action.episode, self._problem(action.problem_id))
        return EpisodeOpened(action.episode)

    async def _step(self, action: StepEpisode) -> EpisodeStepped:
        text = self._tokenizer.decode(action.tokens)
        turn = turn_of(text, self._tokenizer.tool_format, last=action.truncated)
        reply = await self._pool.step(action.episode, turn)
        tokens, role = reply_of(self._tokenizer, reply, action.tokens)
        return EpisodeStepped(action.episode, action.turn, tokens, role, reply.reward, reply.done)

    async def _close(self, action: CloseEpisode) -> None:
        await self._pool.close_episode(action.episode)


async def begin_game(pool: EnvironmentPool, episode: EpisodeId, problem: Problem) -> None:
    """Open the game of a problem as an episode.

    Its seed is the problem's own and not the group's: the prompt, which exists already, was made with it.

    Raises:
        EnvironmentFailed: it does not begin, or otherwise than when its prompt was made.
    """
    data = problem.data
    start = await pool.open(episode, data["environment"], data["seed"], alone=True)
    if start.view != data["messages"] or list(start.tools) != data["tools"]:
        await pool.close_episode(episode)
        reason = "the game begins otherwise than when its prompt was made: it has to follow from its seed"
        raise EnvironmentFailed(reason, retryable=False)


def turn_of(text: str, form: ToolFormat, *, last: bool = False) -> Turn:
    """Return a turn with the parts that are found in its text."""
    parsed = parse_turn(text, form)
    calls: list[Mapping[str, Any]] = [{"name": one.name, "arguments": dict(one.arguments)} for one in parsed.calls]
    return Turn(text, parsed.content, parsed.reasoning, calls, last)


def reply_of(tokenizer: TextTokenizer, reply: Reply, said: Sequence[int]) -> tuple[tuple[int, ...], ObservationRole]:
    """Return a reply's tokens, none if the game is over, and the role of their segment; see ``reply_tokens``."""
    by_tools = bool(reply.messages) and all(one["role"] == "tool" for one in reply.messages)
    return () if reply.done else reply_tokens(tokenizer, reply.messages, said), "tool" if by_tools else "user"


def reply_tokens(tokenizer: TextTokenizer, messages: Sequence[Message], said: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens to append after a turn of the policy, whose tokens are ``said``.

    Raises:
        EnvironmentFailed: the messages have no tokens, or cannot be encoded.
    """
    ended = bool(said) and said[-1] in tokenizer.stop_ids
    try:
        tokens = tuple(tokenizer.encode_reply(messages, ended=ended))
    except TaskError as error:
        raise EnvironmentFailed(f"the environment's reply has no tokens: {error.what}", retryable=False) from error
    if not tokens:  # two turns with nothing between them would be one, which goes on after its end
        raise EnvironmentFailed("the environment's reply has no tokens: it is empty", retryable=False)
    return tokens
