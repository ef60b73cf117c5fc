"""Define what a worker plays: games, one for each episode, whatever an environment is made of.

This module runs in the worker's interpreter, which may lack our packages: see worker.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = Mapping[str, Any]

CLOSE_TIMEOUT_S = 10.0  # for a worker that is to end to close all its games; then it ends, whatever they do


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a game: messages to the policy, and tools that it may call.

    ``agents``: the names of the agents, if there are several. Then ``messages`` are the rules, which all of them read,
    ``speaker`` is the agent that acts first, and ``shown`` is what it is shown before its first turn.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    agents: Sequence[str] = ()
    speaker: str = ""
    shown: Sequence[Message] = ()

    @property
    def view(self) -> list[Message]:
        """Return all that the agent which acts first has read before its first turn."""
        return [*self.messages, *self.shown]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy said. ``text`` is all of it; the other parts are what is found in it.

    ``calls``: the tool calls, each {"name": ..., "arguments": {...}}. ``reasoning``: its thoughts; ``content``: the
    text without thoughts and calls. ``last``: no further turn follows, because the episode has reached a limit.
    """

    text: str
    content: str
    reasoning: str
    calls: Sequence[Mapping[str, Any]]
    last: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a turn: messages for the policy, the reward of this turn, and whether the game is over.

    With several agents, ``speaker`` is the one that acts next and gets the messages, and ``rewards`` holds the rewards
    by agent; ``reward`` is 0 then. An agent that is not named has the reward 0.
    """

    messages: Sequence[Message]
    reward: float
    done: bool
    speaker: str = ""
    rewards: Mapping[str, float] = field(default_factory=dict)


class Game(Protocol):
    """One episode."""

    async def reset(self, seed: int) -> Start:
        """Begin; called once."""
        ...

    async def step(self, turn: Turn) -> Reply:
        """Answer a turn."""
        ...

    async def demonstrate(self) -> str | None:
        """Return what a teacher would say now, for the agent that acts; None if the environment has no teacher."""
        ...

    async def close(self) -> None:
        """Free the resources; called once, whatever happened before."""
        ...


class Games(Protocol):
    """A source of games.

    ``games_at_once``: how many may work at the same time; 1 if a game blocks the process while it works.
    ``problem_count``: number of seeds, from 0 on, that are different problems; None: any integer is a seed.
    """

    games_at_once: int
    problem_count: int | None

    def new(self) -> Game:
        """Return a game that has not begun."""
        ...

    async def close(self) -> None:
        """Free what the games share."""
        ...
