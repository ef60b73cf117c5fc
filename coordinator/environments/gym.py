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

Each episode has an object of its own. Every method may be ``async``. Equal seeds must give equal games: an episode is
played again with its recorded turns when its process has died, and must answer as before.

This module runs in the worker's interpreter, which may lack our packages: see worker.py.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.environments.games import Message, Reply, Start, Turn
from coordinator.workers.plugins import load_plugin
from rollcast.runtime.errors import TaskError

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
        if not all(callable(getattr(self._make, name, None)) for name in ("reset", "step")):
            raise TaskError(
                f"{path} is not an environment",
                cause="it has no reset and step",
                fix="name a class with reset(self, seed) and step(self, text)",
            )

    def new(self) -> GymGame:
        """Return a game that has not begun."""
        return GymGame(self._make(**self._parameters))

    async def close(self) -> None:
        """Do nothing: games share nothing."""


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
        given = (turn.text, [dict(one) for one in turn.calls]) if self._tools else (turn.text,)
        answer = await _result(self._environment.step(*given))
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise ValueError(f"step returned {answer!r:.100} instead of (observation, reward, done)")
        observation, reward, done = answer
        if isinstance(reward, bool) or not math.isfinite(reward):
            raise ValueError(f"step returned the reward {reward!r}, which is not a finite number")
        called = bool(self._tools) and bool(turn.calls)
        return Reply(messages_of(observation, "tool" if called else "user"), float(reward), bool(done))

    async def demonstrate(self) -> str | None:
        """Return what the environment's teacher would say now; None if it has none."""
        teacher = getattr(self._environment, "demonstrate", None)
        return None if teacher is None else str(await _result(teacher()))

    async def close(self) -> None:
        """Free the environment's resources."""
        if callable(close := getattr(self._environment, "close", None)):
            await _result(close())


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


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
