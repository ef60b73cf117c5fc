"""Define what a task is: problems by index, a verifier, and the wording that a tokenizer should cover."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Protocol, get_args

from rollcast.runtime.errors import TaskError

FailureReason = Literal[
    "timeout",  # no verdict before the item's deadline
    "crash",  # the worker ended while it scored the item
    "exception",  # the reward function or check raised, or returned no number
    "unavailable",  # a service does not answer, or refuses
    "limit",  # a limit on money or tokens is reached
]
FAILURE_REASONS: tuple[FailureReason, ...] = get_args(FailureReason)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``answer`` is empty if several are right; ``data`` is JSON for the adapter's own verifier."""

    problem_id: str
    prompt: str
    answer: str
    data: Mapping[str, Any]

    def to_json(self) -> str:
        """Return the problem on one line."""
        return json.dumps([self.problem_id, self.prompt, self.answer, self.data], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """Parse what to_json wrote.

        Raises:
            TaskError: the text is something else.
        """
        try:
            problem_id, prompt, answer, data = json.loads(text)
        except (ValueError, TypeError) as error:
            raise TaskError("a stored problem cannot be read", cause=str(error)) from None
        if not (all(isinstance(part, str) for part in (problem_id, prompt, answer)) and isinstance(data, dict)):
            raise TaskError("a stored problem cannot be read", cause="it does not have the four expected parts")
        return cls(problem_id, prompt, answer, data)


@dataclass(frozen=True, slots=True)
class Score:
    """A completion's score: a finite ``reward``; ``exact`` if it is fully right, else ``detail`` may be the reason.

    ``parts`` has the named components of the reward, such as format and correctness, for people to read.
    """

    reward: float
    exact: bool
    detail: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


class ScoringFailure(Exception):
    """A check could not be made, and the completion is not to blame; see coordinator.verifiers.scorer.Failed."""

    def __init__(self, reason: FailureReason, detail: str, *, retryable: bool = True) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.retryable = reason, detail, retryable


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn of a teacher in an episode. ``turns``: the earlier ones, each with the environment's reply.

    ``shown``: what the agent that takes the turns was shown first, in a game of several agents.
    """

    answer: str
    turns: tuple[tuple[str, Sequence[Mapping[str, Any]]], ...] = ()
    shown: Sequence[Mapping[str, Any]] = ()


class TaskAdapter(Protocol):
    """A source of verifiable problems. Everything follows from the index and the adapter's own seed."""

    @property
    def name(self) -> str:
        """Return the name shown to people, which is also part of every problem's id."""
        ...

    @property
    def problem_count(self) -> int | None:
        """Return how many problems there are; None: an endless number."""
        ...

    def wording(self) -> tuple[str, ...]:
        """Return fixed pieces of the prompts, each of which costs one token."""
        ...

    def characters(self) -> str:
        """Return every other character that prompts and answers use, sorted."""
        ...

    def problem(self, index: int) -> Problem:
        """Return the problem at this index (from 0)."""
        ...

    @property
    def starts_processes(self) -> bool:
        """Return whether verifying starts processes of its own."""
        ...

    def warm_up(self) -> None:
        """Import what verifying needs, so that no completion pays for it.

        Raises:
            TaskError: this machine cannot verify as it should.
            MissingExtra: a library is not installed.
        """
        ...

    def verify(self, problem: Problem, completion_text: str) -> Score:
        """Score a completion; may be slow or fail, as it runs in a verifier process."""
        ...

    def demonstration(self, problem: Problem, *, flawed: bool, random: Random) -> str | Demonstration | None:
        """Return an answer to learn from, right or by a flawed teacher; None if the task has none."""
        ...


def bounded_score(reward: float, detail: str = "") -> Score:
    """Return a score from a verifier's number: clipped to [0, 1], and 0 if it is not finite."""
    if not math.isfinite(reward):
        return Score(0.0, False, detail or f"the verifier's reward is {reward}")
    reward = min(1.0, max(0.0, float(reward)))
    return Score(reward, reward >= 1.0, detail)
