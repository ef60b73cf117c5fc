"""What a task is: problems by index, a verifier, and the wording that a tokenizer should know."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from rollcast.runtime.errors import TaskError


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``answer`` is empty where many are right; ``data`` is JSON for the adapter's own verifier."""

    problem_id: str
    prompt: str
    answer: str
    data: Mapping[str, Any]

    def to_json(self) -> str:
        """The problem on one line."""
        return json.dumps([self.problem_id, self.prompt, self.answer, self.data], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """Read what to_json wrote.

        Raises:
            TaskError: it is something else.
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
    """What a completion is worth: ``reward`` in [0, 1]; ``exact`` if it is wholly right; ``detail`` says why not."""

    reward: float
    exact: bool
    detail: str = ""


class TaskAdapter(Protocol):
    """A source of verifiable problems. Everything follows from the index and the adapter's own seed."""

    @property
    def name(self) -> str:
        """Shown to people and part of every problem's id."""
        ...

    @property
    def problem_count(self) -> int | None:
        """How many problems there are; None: as many as one likes."""
        ...

    def wording(self) -> tuple[str, ...]:
        """Fixed pieces of the prompts, each worth one token."""
        ...

    def characters(self) -> str:
        """Every other character that prompts and answers use, sorted."""
        ...

    def problem(self, index: int) -> Problem:
        """The problem at this index (from 0)."""
        ...

    @property
    def starts_processes(self) -> bool:
        """Whether verifying needs to start processes of its own."""
        ...

    def warm_up(self) -> None:
        """Import what verifying needs, so that no completion pays for it.

        Raises:
            TaskError: this machine cannot verify as it should.
            MissingExtra: a library is not installed.
        """
        ...

    def verify(self, problem: Problem, completion_text: str) -> Score:
        """Score a completion. May be slow or fail: runs in a verifier process."""
        ...

    def demonstration(self, problem: Problem, *, flawed: bool, random: Random) -> str | None:
        """An answer to learn from, right or by a flawed teacher; None if the task has none."""
        ...


def bounded_score(reward: float, detail: str = "") -> Score:
    """A score from a verifier's number: outside [0, 1] it is cut, and infinity or no number is worth nothing."""
    if not math.isfinite(reward):
        return Score(0.0, False, detail or f"the verifier's reward is {reward}")
    reward = min(1.0, max(0.0, float(reward)))
    return Score(reward, reward >= 1.0, detail)
