"""Stream the training problems of one part in their order, and keep held-out problems out of training.

A problem is held out if the BLAKE3 hash of its text is below a threshold, so that the same text is never on both sides,
however often a generator repeats itself. The threshold is found once by searching a fixed range of problems and
follows, like everything here, from the task and the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import lru_cache
from random import Random

from blake3 import blake3

from coordinator.tasks.checks.task import Demonstration, Problem
from coordinator.tasks.multi_task import Part, named
from coordinator.tasks.token_limits import TokenLimits
from rollcast.runtime.errors import TaskError

# Problems of an endless task are numbered; training, examples and the search for held-out problems use separate ranges.
EXAMPLES_START = 1 << 40
SEARCH_START = 1 << 41
SEARCH_FIRST = 8  # problems searched, as a multiple of those to hold out: then an eighth of the stream is left out
SEARCH_MOST = 128
HELD_OUT_SHARE_AIM = 0.25  # share of the distinct problems seen; a small space of problems may need a larger one
HELD_OUT_SHARE_MOST = 0.5

#: Decides from a problem's id, the number of earlier passes through the file and the learner step that a problem is
#: sampled for whether to sample it now.
Wanted = Callable[[str, int, int], bool]


@dataclass(slots=True)
class Cursor:
    """The position of a part's stream, and what it has skipped."""

    next: int = 0
    skipped_too_long: int = 0
    skipped_answer_too_long: int = 0
    skipped_unknown_characters: int = 0
    skipped_dull: int = 0
    skipped_in_evaluation: int = 0

    def values(self) -> list[int]:
        """Return the values in the order of the fields."""
        return [getattr(self, one.name) for one in fields(self)]


class PartStream:
    """One part's problems.

    Args:
        limits: decide which problems are usable at all.
        seed: the run's seed.
        wanted: see Wanted; called for parts with finitely many problems.
    """

    def __init__(self, part: Part, limits: TokenLimits, seed: int, wanted: Wanted) -> None:
        self.name = part.name
        self.cursor = Cursor()
        self._adapter = part.adapter
        self._limits = limits
        self._seed = f"{seed}/{part.name}" if part.name else str(seed)
        self._wanted = wanted
        self._threshold = 0
        self._order = lru_cache(maxsize=4)(self._shuffled)

    def next_problem(self, kept_out: Collection[int], step: int = 0) -> tuple[Problem, tuple[int, ...]] | None:
        """Return the next problem with its prompt's tokens; None if it is to be skipped.

        ``kept_out``: hashes of texts that belong to evaluation. ``step``: the learner step that it is sampled for.
        """
        number = self.cursor.next
        problem = named(self.name, self._adapter.problem(self._training_index(number)))
        self.cursor.next += 1
        text = problem_hash(problem)
        if text < self._threshold:
            return None
        if text in kept_out:
            self.cursor.skipped_in_evaluation += 1
            return None
        count = self._adapter.problem_count
        if count is not None and not self._wanted(problem.problem_id, number // count, step):
            self.cursor.skipped_dull += 1
            return None
        token_ids = self.usable_prompt(problem)
        return None if token_ids is None else (problem, token_ids)

    def example(self, example_id: int, kept_out: Collection[int]) -> tuple[Problem, tuple[int, ...]] | None:
        """Return a problem for the warm start with its prompt's tokens; None if it is unusable or held out."""
        problem = named(self.name, self._adapter.problem(EXAMPLES_START + example_id))
        text = problem_hash(problem)
        prompt = None if text < self._threshold or text in kept_out else self.usable_prompt(problem)
        return None if prompt is None else (problem, prompt)

    def demonstration(self, problem: Problem, *, flawed: bool, random: Random) -> str | Demonstration | None:
        """Return an answer to learn from; None if the task has none."""
        return self._adapter.demonstration(problem, flawed=flawed, random=random)

    def hold_out(self, wanted: int) -> list[tuple[int, Problem, tuple[int, ...]]]:
        """Set exactly ``wanted`` problems apart; return (hash of the text, problem, tokens of its prompt), by hash.

        Raises:
            TaskError: there are too few.
        """
        if not wanted:
            return []
        usable: dict[int, tuple[Problem, tuple[int, ...]]] = {}
        target = wanted * SEARCH_FIRST
        for looked_at, index in enumerate(self._search_indices(wanted), start=1):
            problem = named(self.name, self._adapter.problem(index))
            token_ids = self.usable_prompt(problem)
            if token_ids is not None:
                usable.setdefault(problem_hash(problem), (problem, token_ids))
            if looked_at >= target:
                if len(usable) * HELD_OUT_SHARE_AIM >= wanted or (not usable and looked_at >= wanted * SEARCH_MOST):
                    break
                target *= 2
        if len(usable) * HELD_OUT_SHARE_MOST < wanted:
            raise self._too_few(wanted, len(usable))
        chosen = sorted(usable)[:wanted]
        self._threshold = chosen[-1] + 1
        return [(text, *usable[text]) for text in chosen]

    def usable_prompt(self, problem: Problem) -> tuple[int, ...] | None:
        """Return the prompt's tokens; None, and counted, if the problem is to be skipped."""
        prompt, why = self._limits.check(problem)
        match why:
            case "unknown_characters":
                self.cursor.skipped_unknown_characters += 1
            case "too_long":
                self.cursor.skipped_too_long += 1
            case "answer_too_long":
                self.cursor.skipped_answer_too_long += 1
        return prompt

    def _search_indices(self, wanted: int) -> range:
        if self._adapter.problem_count is not None:
            return range(self._adapter.problem_count)
        return range(SEARCH_START, SEARCH_START + wanted * SEARCH_MOST)

    def _training_index(self, number: int) -> int:
        """Return the index of a training problem: files are repeated in new orders, generators counted up."""
        count = self._adapter.problem_count
        return number if count is None else self._order(number // count)[number % count]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(self._adapter.problem_count or 0))
        Random(f"rollcast/mixture/{self._seed}/{epoch}").shuffle(order)
        return order

    def _too_few(self, wanted: int, usable: int) -> TaskError:
        most = int(usable * HELD_OUT_SHARE_MOST)
        lower = f"set held_out_problems to at most {most}" if most else "change the task"
        return TaskError(
            f"the task {self.name or self._adapter.name} has too few problems to hold out {wanted}",
            cause=f"{usable} different ones are usable: {self._limits.lengths()}",
            fix=" or ".join([*self._limits.higher_limits(), lower]),
        )


def problem_hash(problem: Problem) -> int:
    """Return the hash by which problems are told apart: of the prompt, and of a game also of the seed."""
    return text_hash(f"{problem.data['seed']} {problem.prompt}" if "environment" in problem.data else problem.prompt)


def text_hash(text: str) -> int:
    """Return the BLAKE3 hash of a prompt, 256 bits."""
    return int.from_bytes(blake3(text.encode("utf-8", "surrogatepass")).digest(), "big")
