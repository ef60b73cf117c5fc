"""Choose the problems of named evaluation sets, in addition to those held out of the training task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.tasks.checks.task import Problem, TaskAdapter
from coordinator.tasks.mixture import Example
from coordinator.tasks.multi_task import named
from coordinator.tasks.part_stream import problem_hash
from coordinator.tasks.token_limits import TokenLimits
from rollcast.runtime.errors import TaskError

HELD_OUT = "held_out"  # the set that every task has
SEARCH_MOST = 64  # problems examined, as a multiple of those wanted


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """The problems of one set. Example ids continue from set to set, so that each id names one problem."""

    name: str
    examples: tuple[Example, ...]
    passed_over: int = 0  # problems that do not fit the run's limits and tokenizer


def pick(name: str, part: str, adapter: TaskAdapter, limits: TokenLimits, wanted: int, first_id: int) -> EvaluationSet:
    """Return the first ``wanted`` different usable problems as a set, or all if there are fewer.

    Raises:
        TaskError: no problem is usable.
    """
    found: dict[int, tuple[Problem, tuple[int, ...]]] = {}
    passed_over = 0
    count = adapter.problem_count
    for index in range(wanted * SEARCH_MOST if count is None else count):
        problem = named(part, adapter.problem(index))
        tokens, _ = limits.check(problem)
        if tokens is None:
            passed_over += 1
        else:
            found.setdefault(problem_hash(problem), (problem, tokens))
        if len(found) == wanted:
            break
    if not found:
        raise TaskError(
            f"no problem of the evaluation set {name} can be used",
            cause=limits.lengths(),
            fix=" or ".join([*limits.higher_limits(), f"change evaluation_sets.{name}"]),
        )
    examples = [Example(first_id + number, *one, ()) for number, one in enumerate(found.values())]
    return EvaluationSet(name, tuple(examples), passed_over)


def texts_of(sets: Sequence[EvaluationSet]) -> frozenset[int]:
    """Return the hashes of all prompts of the sets, which training leaves out."""
    return frozenset(problem_hash(example.problem) for one in sets for example in one.examples)


def with_held_out(held_out: Sequence[Example], sets: Sequence[EvaluationSet]) -> Mapping[str, EvaluationSet]:
    """Return all sets by name: first the problems held out of the training task, with ids from 0."""
    first = EvaluationSet(HELD_OUT, tuple(replace(one, example_id=n) for n, one in enumerate(held_out)))
    return {one.name: one for one in (first, *sets)}
