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

    Problems whose prompt is longer than ``prompt_tokens_max`` or has characters that the tokenizer lacks are skipped
    and counted.

    Raises:
        TaskError: the task has too few usable problems for ``held_out_problems``.
    """

    def __init__(
        self, adapter: TaskAdapter, tokenizer: Tokenizer, seed: int, held_out_problems: int, prompt_tokens_max: int
    ) -> None:
        self._adapter = adapter
        self._tokenizer = tokenizer
        self._seed = seed
        self._prompt_tokens_max = prompt_tokens_max
        self._next = 0
        self.skipped_too_long = 0
        self.skipped_unknown_characters = 0
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
            numbers = [values["next"], values["skipped_too_long"], values["skipped_unknown_characters"]]
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError("the saved position of the prompt mixture cannot be read", cause=str(error)) from None
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise TaskError("the saved position of the prompt mixture cannot be read", cause=position[:200])
        self._next, self.skipped_too_long, self.skipped_unknown_characters = numbers

    def held_out(self, count: int) -> list[Example]:
        """The first ``count`` held-out problems (or all there are), the same in every run of this task and seed."""
        return self._held_out[:count]

    def examples(self, count: int, *, flawed: bool, cursor: int) -> list[Example]:
        """Problems with demonstrations from ``cursor`` on, none held out; go on at the last example_id + 1.

        Raises:
            TaskError: the task has no demonstrations.
        """
        found: list[Example] = []
        for example_id in range(cursor, cursor + count + DRY_MAX):
            if len(found) == count:
                return found
            example = self._example(example_id, flawed=flawed)
            if example is not None:
                found.append(example)
        raise TaskError(f"the task {self._adapter.name} has no demonstrations to learn from", fix="choose another task")

    def _draw_one(self) -> Drawn:
        for _ in range(DRY_MAX):
            problem = self._adapter.problem(self._training_index(self._next))
            self._next += 1
            if self._is_held_out(problem):
                continue
            token_ids = self._encode_prompt(problem, count_skips=True)
            if token_ids is not None:
                return Drawn(problem, token_ids, self.position())
        raise TaskError(
            f"no usable problem among the last {DRY_MAX} of {self._adapter.name}",
            cause=f"{self.skipped_too_long} too long, {self.skipped_unknown_characters} with unknown characters",
            fix="raise sampling.prompt_tokens_max or change the task",
        )

    def _example(self, example_id: int, *, flawed: bool) -> Example | None:
        problem = self._adapter.problem(EXAMPLES_START + example_id)
        if self._is_held_out(problem):
            return None
        prompt = self._encode_prompt(problem, count_skips=False)
        random = Random(f"rollcast/teacher/{self._seed}/{example_id}")
        answer = self._adapter.demonstration(problem, flawed=flawed, random=random)
        answer_ids = self._encode(answer) if answer is not None else None
        if prompt is None or answer_ids is None:
            return None
        return Example(example_id, problem, prompt, (*answer_ids, self._tokenizer.eos_id))

    def _hold_out(self, wanted: int) -> tuple[int, list[Example]]:
        """The threshold below which texts are held out, and exactly ``wanted`` of them in order of their hash."""
        usable: dict[int, tuple[Problem, tuple[int, ...]]] = {}
        target = wanted * SEARCH_FIRST
        for looked_at, index in enumerate(self._search_indices(wanted), start=1):
            problem = self._adapter.problem(index)
            token_ids = self._encode_prompt(problem, count_skips=False)
            if token_ids is not None:
                usable.setdefault(_text_hash(problem.prompt), (problem, token_ids))
            if looked_at >= target:
                if len(usable) * HELD_OUT_SHARE_AIM >= wanted:
                    break
                target *= 2
        if len(usable) * HELD_OUT_SHARE_MOST < wanted:
            raise TaskError(
                f"the task {self._adapter.name} has too few problems to hold out {wanted}",
                cause=f"{len(usable)} different ones fit sampling.prompt_tokens_max = {self._prompt_tokens_max}",
                fix=f"set held_out_problems to at most {int(len(usable) * HELD_OUT_SHARE_MOST)}, or change the task",
            )
        chosen = sorted(usable)[:wanted]
        examples = [Example(number, *usable[text_hash], ()) for number, text_hash in enumerate(chosen)]
        return chosen[-1] + 1, examples

    def _search_indices(self, wanted: int) -> range:
        if self._adapter.problem_count is not None:
            return range(self._adapter.problem_count)
        return range(SEARCH_START, SEARCH_START + wanted * SEARCH_MOST)

    def _is_held_out(self, problem: Problem) -> bool:
        return _text_hash(problem.prompt) < self._threshold

    def _encode_prompt(self, problem: Problem, *, count_skips: bool) -> tuple[int, ...] | None:
        token_ids = self._encode(problem.prompt)
        if token_ids is None:
            self.skipped_unknown_characters += count_skips
            return None
        if len(token_ids) > self._prompt_tokens_max:
            self.skipped_too_long += count_skips
            return None
        return token_ids

    def _encode(self, text: str) -> tuple[int, ...] | None:
        try:
            return tuple(self._tokenizer.encode(text))
        except TaskError:
            return None

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
