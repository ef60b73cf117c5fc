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
from coordinator.environments.games import Message, Reply, Start, Turn
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
        self._tables: dict[EpisodeId, _Table] = {}

    def take(self, action: EpisodeAction) -> None:
        """Carry out an action; its answer is applied later."""
        match action:
            case OpenEpisode():
                self._run(action, self._open(action))
            case StepEpisode():
                self._run(action, self._step(action))
            case CloseEpisode():
                self._tables.pop(action.episode, None)
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
        problem = self._problem(action.problem_id)
        table = _Table(problem, self._tokenizer)
        start = await begin_game(self._pool, action.episode, problem, alone=not table.agents)
        if not table.agents:
            return EpisodeOpened(action.episode)
        self._tables[action.episode] = table
        return EpisodeOpened(action.episode, table.shown(start.speaker, start.shown), table.index(start.speaker))

    async def _step(self, action: StepEpisode) -> EpisodeStepped:
        text = self._tokenizer.decode(action.tokens)
        turn = turn_of(text, self._tokenizer.tool_format, last=action.truncated)
        table = self._tables.get(action.episode)
        reply = await self._pool.step(action.episode, turn)
        if table is not None:
            return table.stepped(action, reply)
        tokens, role = reply_of(self._tokenizer, reply, action.tokens)
        return EpisodeStepped(action.episode, action.turn, tokens, role, reply.reward, reply.done)

    async def _close(self, action: CloseEpisode) -> None:
        await self._pool.close_episode(action.episode)


class _Table:
    """What the agents of one game have said: each is shown messages behind its own last turn.

    A game of one agent has no names of agents.
    """

    def __init__(self, problem: Problem, tokenizer: TextTokenizer) -> None:
        self.agents: Sequence[str] = problem.data.get("agents", ())
        self._data = problem.data
        self._tokenizer = tokenizer
        self._said: dict[str, tuple[int, ...]] = {}
        self._speaker = ""

    def index(self, agent: str) -> int:
        """Return the index of an agent."""
        return self.agents.index(agent)

    def shown(self, agent: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """Let an agent act; return the tokens that it is shown before.

        Raises:
            EnvironmentFailed: the messages have no tokens, or cannot be encoded.
        """
        self._speaker = agent
        if agent in self._said:
            return reply_tokens(self._tokenizer, messages, self._said[agent])
        try:
            return tuple(self._tokenizer.encode_shown(self._data["rules"], messages, self._data["tools"]))
        except TaskError as error:
            reason = f"what {agent!r} is shown first has no tokens: {error.what}"
            raise EnvironmentFailed(reason, retryable=False) from error

    def stepped(self, action: StepEpisode, reply: Reply) -> EpisodeStepped:
        """Return the answer to a turn of the agent that acted.

        Raises:
            EnvironmentFailed: the messages have no tokens, or cannot be encoded.
        """
        self._said[self._speaker] = action.tokens
        rewards = tuple(reply.rewards.get(agent, 0.0) for agent in self.agents)
        if reply.done:
            return EpisodeStepped(action.episode, action.turn, (), "user", 0.0, True, 0, rewards)
        is_first, speaker = reply.speaker not in self._said, self.index(reply.speaker)
        tokens = self.shown(reply.speaker, reply.messages)
        role: ObservationRole = "user" if is_first else role_of(reply)
        return EpisodeStepped(action.episode, action.turn, tokens, role, 0.0, False, speaker, rewards)


async def begin_game(pool: EnvironmentPool, episode: EpisodeId, problem: Problem, *, alone: bool = True) -> Start:
    """Open the game of a problem as an episode.

    Its seed is the problem's own and not the group's: the prompt, which exists already, was made with it.

    Args:
        alone: see EnvironmentPool.open. If not, the prompt is the rules that all agents read.

    Raises:
        EnvironmentFailed: it does not begin, or otherwise than when its prompt was made.
    """
    data = problem.data
    start = await pool.open(episode, data["environment"], data["seed"], alone=alone)
    prompt = start.view if alone else list(start.messages)
    if prompt != data["messages" if alone else "rules"] or list(start.tools) != data["tools"]:
        await pool.close_episode(episode)
        reason = "the game begins otherwise than when its prompt was made: it has to follow from its seed"
        raise EnvironmentFailed(reason, retryable=False)
    return start


def turn_of(text: str, form: ToolFormat, *, last: bool = False) -> Turn:
    """Return a turn with the parts that are found in its text."""
    parsed = parse_turn(text, form)
    calls: list[Mapping[str, Any]] = [{"name": one.name, "arguments": dict(one.arguments)} for one in parsed.calls]
    return Turn(text, parsed.content, parsed.reasoning, calls, last)


def reply_of(tokenizer: TextTokenizer, reply: Reply, said: Sequence[int]) -> tuple[tuple[int, ...], ObservationRole]:
    """Return a reply's tokens, none if the game is over, and the role of their segment; see ``reply_tokens``."""
    return () if reply.done else reply_tokens(tokenizer, reply.messages, said), role_of(reply)


def role_of(reply: Reply) -> ObservationRole:
    """Return the role of a reply's segment."""
    by_tools = bool(reply.messages) and all(one["role"] == "tool" for one in reply.messages)
    return "tool" if by_tools else "user"


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
