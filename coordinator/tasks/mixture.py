"""The stream of training prompts, its position, and the problems kept out of training.

A problem is held out if the BLAKE3 hash of its text is below a threshold, so the same text is never on both sides,
however often a generator repeats itself. The threshold is found once by looking at a fixed range of problems and
follows, like everything here, from the task and the seed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import NamedTuple

from blake3 import blake3

from coordinator.tasks.adapter import Problem, TaskAdapter
from rollcast.runtime.errors import TaskError
from rollcast.wire.tokenizer import Tokenizer

# Problems of an endless task are numbered; training, examples and the search for held-out problems use separate ranges.
EXAMPLES_START = 1 << 40
SEARCH_START = 1 << 41
SEARCH_FIRST = 8  # problems looked at, as a multiple of those to hold out: an eighth of the stream is then left out
SEARCH_MOST = 128
HELD_OUT_SHARE_AIM = 0.25  # of the distinct problems seen; a small space of problems may need a larger share
HELD_OUT_SHARE_MOST = 0.5
DRY_MAX = 100_000  # unusable problems in a row before we say so
NO_DEMONSTRATION_MAX = 256  # usable problems without a demonstration in a row before we say that the task has none


POSITION_FIELDS = ("next", "skipped_too_long", "skipped_answer_too_long", "skipped_unknown_characters")


class Drawn(NamedTuple):
    """One training prompt. ``position`` is where the mixture stands after it (opaque JSON)."""

    problem: Problem
    prompt_token_ids: tuple[int, ...]
    position: str


@dataclass(frozen=True, slots=True)
class Example:
    """A problem with its demonstration; ``answer_token_ids`` ends with the end of sequence, empty if held out."""

    example_id: int
    problem: Problem
    prompt_token_ids: tuple[int, ...]
    answer_token_ids: tuple[int, ...]


class PromptMixture:
    """An endless, deterministic stream of training problems, and the problems held out of it.

    Skipped and counted, in training, warm start and held-out problems alike: problems whose prompt is longer than
    ``prompt_tokens_max``, whose own answer with its end of sequence is longer than ``new_tokens_max`` (nobody could
    give it), or that have characters which the tokenizer lacks.

    Raises:
        TaskError: the task has too few usable problems for ``held_out_problems``.
    """

    def __init__(
        self,
        adapter: TaskAdapter,
        tokenizer: Tokenizer,
        seed: int,
        held_out_problems: int,
        prompt_tokens_max: int,
        new_tokens_max: int,
    ) -> None:
        self._adapter = adapter
        self.tokenizer = tokenizer
        self._seed = seed
        self._prompt_tokens_max = prompt_tokens_max
        self._new_tokens_max = new_tokens_max
        self._next = 0
        self.skipped_too_long = 0
        self.skipped_answer_too_long = 0
        self.skipped_unknown_characters = 0
        self._longest_prompt = 0  # tokens, of all problems looked at
        self._longest_answer = 0
        self._order = lru_cache(maxsize=4)(self._shuffled)
        self._threshold, self._held_out = self._hold_out(held_out_problems)

    def draw(self, count: int) -> list[Drawn]:
        """The next ``count`` training problems.

        Raises:
            TaskError: the task has no more problem that can be used.
        """
        return [self._draw_one() for _ in range(count)]

    def position(self) -> str:
        """Where the stream stands, as JSON."""
        return json.dumps(
            {
                "next": self._next,
                "skipped_too_long": self.skipped_too_long,
                "skipped_answer_too_long": self.skipped_answer_too_long,
                "skipped_unknown_characters": self.skipped_unknown_characters,
            }
        )

    def restore(self, position: str) -> None:
        """Continue exactly after the problem that came with this position.

        Raises:
            TaskError: it is not a position.
        """
        try:
            values = json.loads(position)
            numbers = [values[name] for name in POSITION_FIELDS]
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError("the saved position of the prompt mixture cannot be read", cause=str(error)) from None
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise TaskError("the saved position of the prompt mixture cannot be read", cause=position[:200])
        self._next, self.skipped_too_long, self.skipped_answer_too_long, self.skipped_unknown_characters = numbers

    def held_out(self, count: int) -> list[Example]:
        """The first ``count`` held-out problems (or all there are), the same in every run of this task and seed."""
        return self._held_out[:count]

    def examples(self, count: int, *, flawed: bool, cursor: int) -> list[Example]:
        """Problems with demonstrations from ``cursor`` on, none held out; go on at the last example_id + 1.

        Raises:
            TaskError: the task has no demonstrations, or no more problem that can be used.
        """
        found: list[Example] = []
        without = 0  # usable problems in a row that have no demonstration
        for example_id in range(cursor, cursor + count + DRY_MAX):
            if len(found) == count:
                return found
            if without == NO_DEMONSTRATION_MAX:
                raise self._no_demonstrations()
            problem = self._adapter.problem(EXAMPLES_START + example_id)
            prompt = None if self._is_held_out(problem) else self._usable_prompt(problem)
            if prompt is None:
                continue
            random = Random(f"rollcast/teacher/{self._seed}/{example_id}")
            answer = self._adapter.demonstration(problem, flawed=flawed, random=random)
            without = without + 1 if answer is None else 0
            answer_ids = self._encode_answer(answer) if answer is not None else None
            # A flawed answer may be longer than the right one.
            if answer_ids is not None and len(answer_ids) <= self._new_tokens_max:
                found.append(Example(example_id, problem, prompt, answer_ids))
        raise self._dry()

    def _draw_one(self) -> Drawn:
        for _ in range(DRY_MAX):
            problem = self._adapter.problem(self._training_index(self._next))
            self._next += 1
            if self._is_held_out(problem):
                continue
            token_ids = self._usable_prompt(problem)
            if token_ids is not None:
                return Drawn(problem, token_ids, self.position())
        raise self._dry()

    def _hold_out(self, wanted: int) -> tuple[int, list[Example]]:
        """The threshold below which texts are held out, and exactly ``wanted`` of them in order of their hash."""
        usable: dict[int, tuple[Problem, tuple[int, ...]]] = {}
        target = wanted * SEARCH_FIRST
        for looked_at, index in enumerate(self._search_indices(wanted), start=1):
            problem = self._adapter.problem(index)
            token_ids = self._usable_prompt(problem)
            if token_ids is not None:
                usable.setdefault(_text_hash(problem.prompt), (problem, token_ids))
            if looked_at >= target:
                if len(usable) * HELD_OUT_SHARE_AIM >= wanted:
                    break
                target *= 2
        if len(usable) * HELD_OUT_SHARE_MOST < wanted:
            raise self._too_few(wanted, len(usable))
        chosen = sorted(usable)[:wanted]
        examples = [Example(number, *usable[text_hash], ()) for number, text_hash in enumerate(chosen)]
        return chosen[-1] + 1, examples

    def _search_indices(self, wanted: int) -> range:
        if self._adapter.problem_count is not None:
            return range(self._adapter.problem_count)
        return range(SEARCH_START, SEARCH_START + wanted * SEARCH_MOST)

    def _is_held_out(self, problem: Problem) -> bool:
        return _text_hash(problem.prompt) < self._threshold

    def _usable_prompt(self, problem: Problem) -> tuple[int, ...] | None:
        """The prompt's tokens; None, and counted, if the problem is to be skipped."""
        prompt = self._encode(problem.prompt)
        answer = self._encode_answer(problem.answer) if problem.answer else ()
        if prompt is None or answer is None:
            self.skipped_unknown_characters += 1
            return None
        self._longest_prompt = max(self._longest_prompt, len(prompt))
        self._longest_answer = max(self._longest_answer, len(answer))
        if len(prompt) > self._prompt_tokens_max:
            self.skipped_too_long += 1
            return None
        if len(answer) > self._new_tokens_max:
            self.skipped_answer_too_long += 1
            return None
        return prompt

    def _encode_answer(self, text: str) -> tuple[int, ...] | None:
        token_ids = self._encode(text)
        return None if token_ids is None else (*token_ids, self.tokenizer.eos_id)

    def _encode(self, text: str) -> tuple[int, ...] | None:
        try:
            return tuple(self.tokenizer.encode(text))
        except TaskError:
            return None

    # ---------------------------------------------------------------- what to tell people

    def _too_few(self, wanted: int, usable: int) -> TaskError:
        most = int(usable * HELD_OUT_SHARE_MOST)
        lower = f"set held_out_problems to at most {most}" if most else "change the task"
        return TaskError(
            f"the task {self._adapter.name} has too few problems to hold out {wanted}",
            cause=f"{usable} different ones are usable: {self._lengths()}",
            fix=" or ".join([*self._higher_limits(), lower]),
        )

    def _dry(self) -> TaskError:
        return TaskError(
            f"no usable problem among the last {DRY_MAX} of {self._adapter.name}",
            cause=self._lengths(),
            fix=" or ".join([*self._higher_limits(), "change the task"]),
        )

    def _no_demonstrations(self) -> TaskError:
        return TaskError(
            f"the task {self._adapter.name} has no demonstrations for a warm start",
            cause="its problems come without an answer that can be shown",
            fix="set learner.warm_start.steps_max=0, or choose another task",
        )

    def _lengths(self) -> str:
        return (
            f"prompts have up to {self._longest_prompt} tokens (sampling.prompt_tokens_max = "
            f"{self._prompt_tokens_max}), answers have up to {self._longest_answer} tokens with their end of sequence "
            f"(sampling.new_tokens_max = {self._new_tokens_max}), and {self.skipped_unknown_characters} have "
            "characters that the tokenizer lacks"
        )

    def _higher_limits(self) -> list[str]:
        """What to raise so that every problem seen fits; empty if all do."""
        needs = (
            ("sampling.prompt_tokens_max", self._longest_prompt, self._prompt_tokens_max),
            ("sampling.new_tokens_max", self._longest_answer, self._new_tokens_max),
        )
        raises = [f"{name} to {longest}" for name, longest, limit in needs if longest > limit]
        return [f"raise {' and '.join(raises)}"] if raises else []

    # ---------------------------------------------------------------- order

    def _training_index(self, number: int) -> int:
        """A file is gone through again and again, each time in another order; a generator is simply counted up."""
        count = self._adapter.problem_count
        return number if count is None else self._order(number // count)[number % count]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(self._adapter.problem_count or 0))
        Random(f"rollcast/mixture/{self._seed}/{epoch}").shuffle(order)
        return order


def _text_hash(text: str) -> int:
    return int.from_bytes(blake3(text.encode("utf-8", "surrogatepass")).digest(), "big")
