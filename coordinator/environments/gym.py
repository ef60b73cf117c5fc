"""Play environments of our own small protocol, which a user writes in one class.

    class Game:
        tools = []                       # optional: tools as chat templates take them, see docs/tasks.md

        def reset(self, seed):           # -> the prompt: text, or a list of chat messages
            ...
        def step(self, text):            # -> observation (text or messages), reward, done
            ...                          # with tools: step(self, text, calls)
        def close(self):                 # optional: frees resources; always called, once
            ...
        def demonstrate(self):           # optional: what a teacher would say now, for the warm start
            ...

With several agents, each of which makes a trajectory of its own:

    class Game:
        agents = ["seller", "buyer"]

        def reset(self, seed):           # -> the rules that all agents read, who acts first, what it is shown
            ...
        def step(self, text):            # -> who acts next, what it is shown, rewards by agent, done
            ...
        def demonstrate(self):           # needed: what a teacher would say for the agent that acts now
            ...

Each episode has an object of its own. Every method may be ``async``. Equal seeds must give equal games: an episode is
played again with its recorded turns when its process has died, and must answer as before.

This module runs in the worker's interpreter, which may lack our packages: see worker.py.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.environments.games import Game, Message, Reply, Start, Turn
from coordinator.workers.plugins import load_plugin
from rollcast.runtime.errors import TaskError
from rollcast.wire.limits import AGENTS_MAX

ENTRY_POINTS = "rollcast.environments"


class GymGames:
    """Games of one user's class.

    Raises:
        TaskError: the class cannot be loaded, or lacks a method.
    """

    games_at_once = 1
    problem_count: int | None = None

    def __init__(self, path: str, parameters: Mapping[str, Any]) -> None:
        self._make = load_plugin(path, ENTRY_POINTS)
        self._parameters = dict(parameters)
        self._path = path
        lacks = [name for name in ("reset", "step") if not callable(getattr(self._make, name, None))]
        if lacks:
            raise TaskError(
                f"{path} is not an environment",
                cause=f"it has no {' and '.join(lacks)}",
                fix="name a class with reset(self, seed) and step(self, text)",
            )
        self._agents = self._named_agents(getattr(self._make, "agents", ()))

    def new(self) -> Game:
        """Return a game that has not begun."""
        environment = self._make(**self._parameters)
        return GymTable(environment, self._agents) if self._agents else GymGame(environment)

    async def close(self) -> None:
        """Do nothing: games share nothing."""

    def _named_agents(self, agents: Any) -> tuple[str, ...]:
        """Return the names of a class's agents; empty if there is one agent.

        Raises:
            TaskError: they are not names, or no teacher can play an opponent in evaluations.
        """
        names = tuple(agents) if isinstance(agents, (list, tuple)) else (agents,)
        if not names:
            return ()
        if not 2 <= len(set(names)) == len(names) <= AGENTS_MAX or not all(
            one and isinstance(one, str) for one in names
        ):
            raise TaskError(
                f"{self._path} has agents that cannot be told apart",
                cause=f"agents = {agents!r:.100}",
                fix=f"set agents to a list of 2 to {AGENTS_MAX} different names, or remove it",
            )
        if not callable(getattr(self._make, "demonstrate", None)):
            raise TaskError(
                f"{self._path} has several agents and no demonstrate",
                cause="in evaluations and in the warm start a teacher plays the other agents",
                fix="add demonstrate(self), which returns what a teacher would say for the agent that acts",
            )
        return names


class GymGame:
    """One object of the user's class."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._tools = tuple(getattr(environment, "tools", ()))

    async def reset(self, seed: int) -> Start:
        """Begin."""
        prompt = await _result(self._environment.reset(seed))
        return Start(messages_of(prompt, "user"), self._tools)

    async def step(self, turn: Turn) -> Reply:
        """Answer a turn.

        Raises:
            ValueError: step returned something else than an observation, a reward and whether the game is over.
        """
        answer = await self._step(turn)
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise ValueError(f"step returned {answer!r:.100} instead of (observation, reward, done)")
        observation, reward, done = answer
        called = bool(self._tools) and bool(turn.calls)
        return Reply(messages_of(observation, "tool" if called else "user"), _finite(reward), bool(done))

    async def demonstrate(self) -> str | None:
        """Return what the environment's teacher would say now; None if it has none."""
        teacher = getattr(self._environment, "demonstrate", None)
        return None if teacher is None else str(await _result(teacher()))

    async def close(self) -> None:
        """Free the environment's resources."""
        if callable(close := getattr(self._environment, "close", None)):
            await _result(close())

    async def _step(self, turn: Turn) -> Any:
        given = (turn.text, [dict(one) for one in turn.calls]) if self._tools else (turn.text,)
        return await _result(self._environment.step(*given))


class GymTable(GymGame):
    """One object of a user's class with several agents."""

    def __init__(self, environment: Any, agents: Sequence[str]) -> None:
        super().__init__(environment)
        self._agents = agents
        self._speaker = ""

    async def reset(self, seed: int) -> Start:
        """Begin.

        Raises:
            ValueError: reset returned something else than the rules, who acts first and what it is shown.
        """
        answer = await _result(self._environment.reset(seed))
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise ValueError(f"reset returned {answer!r:.100} instead of (rules, who acts first, what it is shown)")
        rules, self._speaker, shown = answer
        return Start(
            *(messages_of(rules, "user"), self._tools, self._agents, self._speaker), messages_of(shown, "user")
        )

    async def step(self, turn: Turn) -> Reply:
        """Answer a turn of the agent that acts.

        Raises:
            ValueError: step returned something else than who acts next, what it is shown, the rewards and whether the
                game is over.
        """
        answer = await self._step(turn)
        if not isinstance(answer, tuple) or len(answer) != 4 or not isinstance(answer[2], dict):
            raise ValueError(
                f"step returned {answer!r:.100} instead of (who acts next, what it is shown, rewards, done)"
            )
        before, (self._speaker, shown, rewards, done) = self._speaker, answer
        called = bool(turn.calls) and self._speaker == before  # a tool answers the agent that called it
        messages = messages_of(shown, "tool" if called else "user")
        by_agent = {str(name): _finite(reward) for name, reward in rewards.items()}
        return Reply(messages, 0.0, bool(done), self._speaker or "", by_agent)


def messages_of(value: Any, role: str) -> Sequence[Message]:
    """Return chat messages; a text is one message of this role, and an empty text is none.

    Raises:
        ValueError: the value is neither text nor messages.
    """
    if isinstance(value, str):
        return ({"role": role, "content": value},) if value else ()
    if isinstance(value, (list, tuple)) and all(isinstance(one, dict) for one in value):
        return tuple(value)
    raise ValueError(f"{value!r:.100} is neither text nor a list of chat messages")


def _finite(reward: Any) -> float:
    if isinstance(reward, bool) or not math.isfinite(reward):
        raise ValueError(f"step returned the reward {reward!r}, which is not a finite number")
    return float(reward)


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
