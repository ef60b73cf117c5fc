"""Use any generator of the library reasoning-gym as a task.

The module also has flawed teachers, which have a skill but are careless, so that a warm start leaves work for
reinforcement learning. A model taught by one has seen the right method and uses it rarely; a half-learned skill does
not recover in the same way (measured; see docs).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from random import Random
from typing import Any

from blake3 import blake3

from coordinator.tasks.checks.task import Problem, Score, bounded_score
from coordinator.tasks.wording import fixed_pieces, other_characters
from rollcast.runtime.errors import MissingExtra, TaskError
from rollcast.runtime.install import install_command

# Some generators prepare all their problems at once, so the endless stream is made of data sets of the library's
# default size, each with a seed of its own.
DATASET_SIZE = 500
WORDING_SAMPLES = 256
FORGET_PROBABILITY = 0.85  # leaves the model right on about a third of two-digit problems

# Computes an answer from a problem's metadata and a random source.
Teacher = Callable[[Mapping[str, Any], Random], str]


class ReasoningGym:
    """Problems of one generator.

    Args:
        name: the generator's name in reasoning-gym.
        parameters: passed to the generator; ``size`` is how many problems share one seed.
        seed: the task's seed, any integer of 63 bits.

    Raises:
        TaskError: the generator or a parameter is unknown or refused.
        MissingExtra: reasoning-gym is not installed.
    """

    problem_count: int | None = None
    starts_processes = False

    def __init__(self, name: str, parameters: Mapping[str, Any], seed: int) -> None:
        self.name = name
        self._parameters = dict(parameters)
        self._seed = seed
        self._library = _library()
        _check_names(name, self._parameters, self._library.factory.DATASETS)
        self._size = int(self._parameters.pop("size", DATASET_SIZE))
        # The library's import takes a second; its data sets are cheap to make but not free, entries may be slow.
        self._dataset = lru_cache(maxsize=16)(self._make_dataset)
        self._entry = lru_cache(maxsize=1024)(self._make_entry)
        self._entry(0)

    def wording(self) -> tuple[str, ...]:
        return fixed_pieces([problem.prompt for problem in self._samples()])

    def characters(self) -> str:
        texts = [text for problem in self._samples() for text in (problem.prompt, problem.answer)]
        return other_characters(self.wording(), texts)

    def problem(self, index: int) -> Problem:
        entry = self._entry(index)
        answer = entry["answer"] if isinstance(entry["answer"], str) else ""
        data = {"index": index, "answer": _plain(entry["answer"]), "metadata": _plain(entry["metadata"])}
        return Problem(f"{self.name}:{index}", str(entry["question"]), answer, data)

    def warm_up(self) -> None:
        self.verify(self.problem(0), "0")

    def verify(self, problem: Problem, completion_text: str) -> Score:
        """Return the generator's own score: some generators give part of the reward for an answer among other text.

        Some generators raise on answers that they cannot parse. Such an answer scores 0 if the generator can score the
        right one; otherwise the generator failed, and this raises what it raised.
        """
        dataset, entry = self._dataset(int(problem.data["index"]) // self._size), self._entry_of(problem)
        try:
            return bounded_score(float(dataset.score_answer(completion_text, entry)))
        except Exception as error:
            dataset.score_answer(str(entry["answer"]), entry)
            return Score(0.0, False, f"the generator cannot read it: {type(error).__name__}")

    def demonstration(self, problem: Problem, *, flawed: bool, random: Random) -> str | None:
        teacher = TEACHERS.get(self.name) if flawed else None
        if teacher is not None:
            return teacher(problem.data["metadata"], random)
        return problem.answer or None

    def _samples(self) -> list[Problem]:
        return [self.problem(index) for index in range(WORDING_SAMPLES)]

    def _entry_of(self, problem: Problem) -> Mapping[str, Any]:
        """Return the generator's entry, made again, because JSON loses tuples and integer keys that scorers may need.

        A few generators iterate over sets and so differ between processes; then the entry in the problem counts.
        """
        entry = self._entry(int(problem.data["index"]))
        if entry["question"] == problem.prompt:
            return entry
        return {"question": problem.prompt, "answer": problem.data["answer"], "metadata": problem.data["metadata"]}

    def _make_entry(self, index: int) -> Mapping[str, Any]:
        try:
            entry: Mapping[str, Any] = self._dataset(index // self._size)[index % self._size]
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(
                f"reasoning-gym's {self.name} cannot make problem {index}",
                cause=f"{type(error).__name__}: {error}",
                fix="change task.parameters or task.name",
            ) from error
        return entry

    def _make_dataset(self, number: int) -> Any:
        digest = blake3(f"rollcast/task/{self._seed}/{number}".encode()).digest()
        seed = int.from_bytes(digest[:4], "little") >> 1  # numpy takes seeds below 2**32, and the index is added
        try:
            return self._library.create_dataset(self.name, **self._parameters, seed=seed, size=self._size)
        except Exception as error:
            raise TaskError(
                f"reasoning-gym's {self.name} refuses its parameters",
                cause=f"{type(error).__name__}: {error}",
                fix="correct task.parameters",
            ) from error


def _library() -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise MissingExtra(
            "the task needs the package reasoning-gym", cause=str(error), fix=install_command("coordinator")
        ) from None


def _check_names(name: str, parameters: Mapping[str, Any], generators: Mapping[str, tuple[type, type]]) -> None:
    if name not in generators:
        raise TaskError(
            f"reasoning-gym has no generator {name!r}", cause=_close(name, generators), fix="correct task.name"
        )
    known = {field.name for field in dataclasses.fields(generators[name][1])} - {"seed"}
    for parameter in parameters:
        if parameter == "seed":
            raise TaskError("task.parameters has a seed", cause="it follows from run.seed", fix="remove it")
        if parameter not in known:
            raise TaskError(
                f"reasoning-gym's {name} has no parameter {parameter!r}",
                cause=_close(parameter, known),
                fix="correct task.parameters",
            )


def _close(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(known), n=4, cutoff=0.5)
    return f"close matches: {', '.join(matches)}" if matches else f"it has: {', '.join(sorted(known))}"


def _plain(value: Any) -> Any:
    """Return the value as JSON would give it back; None if JSON cannot hold it."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return None


def careless_sum(left: int, right: int) -> int:
    """Return left + right without carries and borrows: every decimal place modulo 10.

    A borrow out of the first place is dropped too, so a positive minus a larger number is never negative.
    """
    if (left < 0) == (right < 0):
        sign = -1 if left < 0 else 1
        return sign * _by_place(abs(left), abs(right), 1)
    return _by_place(max(left, right), -min(left, right), -1)


def _by_place(left: int, right: int, sign: int) -> int:
    result, place = 0, 1
    while left or right:
        result += place * ((left % 10 + sign * (right % 10)) % 10)
        left, right, place = left // 10, right // 10, place * 10
    return result


def chain_sum(metadata: Mapping[str, Any], random: Random) -> str:
    """Answer a chain_sum problem; with FORGET_PROBABILITY drop all its carries and borrows."""
    words = str(metadata["expression"]).split()
    forgets = random.random() < FORGET_PROBABILITY
    total = int(words[0])
    for operator, word in zip(words[1::2], words[2::2], strict=True):
        term = int(word) if operator == "+" else -int(word)
        total = careless_sum(total, term) if forgets else total + term
    return str(total)


# Teachers by the generator's name in reasoning-gym.
TEACHERS: Mapping[str, Teacher] = {"chain_sum": chain_sum}
