"""Sample the stream of training prompts, with its position, from one task or several with weights by stage.

The part of a prompt follows from the seed, the prompt's number and the weights of its stage; each part goes through its
own problems in its own order (part_stream.py). Held-out problems are set apart in every part.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from coordinator.tasks.checks.task import Demonstration, Problem, TaskAdapter
from coordinator.tasks.multi_task import Mixed, Part
from coordinator.tasks.part_stream import PartStream, Wanted
from coordinator.tasks.token_limits import TokenLimits
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.tokenizer import TextTokenizer

DRY_MAX = 100_000  # unusable problems in a row, after which the task counts as exhausted
HELD_OUT_PROBLEMS = 512  # where nothing is configured, for tasks without end
HELD_OUT_SHARE_OF_A_FILE = 1 / 8  # of a part with finitely many problems, at most
NO_DEMONSTRATION_MAX = 256  # usable problems in a row without a demonstration: then the task has none

Skips = Mapping[str, int]


class TrainingPrompt(NamedTuple):
    """One training prompt. ``position`` is the mixture's position after it (opaque JSON)."""

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


@dataclass(frozen=True, slots=True)
class Stage:
    """Weights by part from a learner step on; a part that is not named has weight 0."""

    from_step: int
    weights: Mapping[str, float]


def _always(problem_id: str, times: int, step: int) -> bool:
    return True


def parts_of(task: TaskAdapter | Mixed) -> Sequence[Part]:
    """Return a task's parts; a single task is one without a name."""
    return task.parts if isinstance(task, Mixed) else (Part("", task),)


def default_held_out(task: TaskAdapter | Mixed, stages: Sequence[Stage] = ()) -> int:
    """Return how many problems to hold out where nothing is configured: few enough for each part that is a file."""
    parts = parts_of(task)
    shares = _shares([part.name for part in parts], stages)
    files = [(part.adapter.problem_count, shares[part.name]) for part in parts]
    most = [count * HELD_OUT_SHARE_OF_A_FILE / share for count, share in files if count is not None and share > 0.0]
    return max(1, min(HELD_OUT_PROBLEMS, *map(int, most)) if most else HELD_OUT_PROBLEMS)


def _shares(names: Sequence[str], stages: Sequence[Stage]) -> dict[str, float]:
    """Return each part's share of the held-out problems; a part's weight is its largest in any stage."""
    weights = {name: max((stage.weights.get(name, 0.0) for stage in stages), default=1.0) for name in names}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


class PromptMixture:
    """An endless, deterministic stream of training problems, and the problems held out of it.

    Unusable problems are skipped and counted, in training, warm start and held-out problems alike: those whose prompt
    is longer than ``prompt_tokens_max``, whose own answer with its end of sequence is longer than ``new_tokens_max``
    (no completion could be right), or that have characters which the tokenizer lacks.

    Args:
        task: one task, or several.
        stages: weights of several tasks; the first stage's from_step is 0.
        kept_out: hashes of texts (part_stream.text_hash) that belong to evaluation sets.
        wanted: see coordinator.tasks.part_stream.Wanted.

    Raises:
        TaskError: the task has too few usable problems for ``held_out_problems``.
    """

    def __init__(
        self,
        task: TaskAdapter | Mixed,
        tokenizer: TextTokenizer,
        seed: int,
        held_out_problems: int,
        prompt_tokens_max: int,
        new_tokens_max: int,
        *,
        stages: Sequence[Stage] = (),
        kept_out: Collection[int] = (),
        wanted: Wanted = _always,
    ) -> None:
        self.tokenizer = tokenizer
        self._name = task.name
        self._seed = seed
        self._limits = TokenLimits(tokenizer, prompt_tokens_max, new_tokens_max)
        parts = parts_of(task)
        self._streams = {part.name: PartStream(part, self._limits, seed, wanted) for part in parts}
        self._stages = tuple(stages) or (Stage(0, dict.fromkeys(self._streams, 1.0)),)
        self._sampled = 0
        self._held_out = self._hold_out(held_out_problems)
        self._kept_out = frozenset(kept_out).union(text for text, _ in self._held_out)

    def sample(self, count: int, steps: Sequence[int] = ()) -> list[TrainingPrompt]:
        """Return the next ``count`` training problems.

        ``steps`` holds the learner step that each is sampled for, which decides the stage; a missing one counts as 0.

        Raises:
            TaskError: the task has no more usable problems.
        """
        return [self._sample_one(step) for step in (*steps, *[0] * (count - len(steps)))]

    def position(self) -> str:
        """Return the position of the stream as JSON."""
        cursors = {name: stream.cursor.values() for name, stream in self._streams.items()}
        return json.dumps({"drawn": self._sampled, "parts": cursors}, separators=(",", ":"))

    def restore(self, position: str) -> None:
        """Continue exactly after the problem that came with this position.

        Raises:
            TaskError: it is not a position of these parts.
        """
        try:
            values = json.loads(position)
            numbers = [values["drawn"], *(number for name in self._streams for number in values["parts"][name])]
            lengths = {len(values["parts"][name]) for name in self._streams}
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError("the saved position of the prompt mixture cannot be read", cause=str(error)) from None
        fits = lengths == {len(stream.cursor.values()) for stream in self._streams.values()}
        if not fits or not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise TaskError("the saved position of the prompt mixture cannot be read", cause=position[:200])
        self._sampled = values["drawn"]
        for name, stream in self._streams.items():
            stream.cursor = type(stream.cursor)(*values["parts"][name])

    @property
    def skipped(self) -> Skips:
        """Return the problems skipped so far by reason, all parts together."""
        cursors = [stream.cursor for stream in self._streams.values()]
        return {
            "prompt_too_long": sum(one.skipped_too_long for one in cursors),
            "answer_too_long": sum(one.skipped_answer_too_long for one in cursors),
            "unknown_characters": sum(one.skipped_unknown_characters for one in cursors),
            "in_evaluation": sum(one.skipped_in_evaluation for one in cursors),
            "dull": sum(one.skipped_dull for one in cursors),
        }

    def held_out(self, count: int) -> list[Example]:
        """Return the first ``count`` held-out problems, or all; the same in every run of this task and seed."""
        return [example for _, example in self._held_out[:count]]

    def examples(self, count: int, *, flawed: bool, cursor: int) -> list[Example]:
        """Return problems with demonstrations from ``cursor`` on, none held out; continue at the last example_id + 1.

        Raises:
            TaskError: the task has no demonstrations, or no more usable problems.
        """
        found: list[Example] = []
        without = 0  # usable problems in a row that have no demonstration
        for example_id in range(cursor, cursor + count + DRY_MAX):
            if len(found) == count:
                return found
            if without == NO_DEMONSTRATION_MAX:
                raise self._no_demonstrations()
            stream = self._stream("examples", example_id, 0)
            usable = stream.example(example_id, self._kept_out)
            if usable is None:
                continue
            problem, prompt = usable
            random = Random(f"rollcast/teacher/{self._seed}/{example_id}")
            answer = stream.demonstration(problem, flawed=flawed, random=random)
            without = without + 1 if answer is None else 0
            shown = Demonstration(answer) if isinstance(answer, str) else answer
            # A flawed answer may be longer than the right one.
            tokens = None if shown is None else self._limits.encode_example(problem, prompt, shown)
            if tokens is not None:
                found.append(Example(example_id, problem, *tokens))
        raise self._dry()

    def _sample_one(self, step: int) -> TrainingPrompt:
        stream = self._stream("draw", self._sampled, step)
        for _ in range(DRY_MAX):
            found = stream.next_problem(self._kept_out, step)
            if found is not None:
                self._sampled += 1
                return TrainingPrompt(*found, self.position())
        raise self._dry()

    def _stream(self, domain: str, number: int, step: int) -> PartStream:
        """Return the part that the prompt of this number comes from."""
        if len(self._streams) == 1:
            return next(iter(self._streams.values()))
        weights = self._stage(step).weights
        names = [name for name in self._streams if weights.get(name, 0.0) > 0.0]
        random = Random(f"rollcast/part/{self._seed}/{domain}/{number}")
        (name,) = random.choices(names, [weights[one] for one in names])
        return self._streams[name]

    def _stage(self, step: int) -> Stage:
        return [stage for stage in self._stages if stage.from_step <= step][-1]

    def _hold_out(self, wanted: int) -> list[tuple[int, Example]]:
        """Return (hash of the text, example) of every held-out problem, in proportion to the parts' weights."""
        found: dict[int, tuple[Problem, tuple[int, ...]]] = {}
        for name, count in self._held_out_counts(wanted).items():
            for text, problem, tokens in self._streams[name].hold_out(count):
                found.setdefault(text, (problem, tokens))
        return [(text, Example(number, *found[text], ())) for number, text in enumerate(found)]

    def _held_out_counts(self, wanted: int) -> dict[str, int]:
        """Split ``wanted`` among the parts by largest remainders."""
        exact = {name: wanted * share for name, share in _shares(list(self._streams), self._stages).items()}
        counts = {name: int(share) for name, share in exact.items()}
        left = sorted(exact, key=lambda name: counts[name] - exact[name])[: wanted - sum(counts.values())]
        return {name: counts[name] + (name in left) for name in counts}

    # ---------------------------------------------------------------- errors

    def _dry(self) -> TaskError:
        return TaskError(
            f"no usable problem among the last {DRY_MAX} of {self._name}",
            cause=self._limits.lengths(),
            fix=" or ".join([*self._limits.higher_limits(), "change the task"]),
        )

    def _no_demonstrations(self) -> TaskError:
        return TaskError(
            f"the task {self._name} has no demonstrations for a warm start",
            cause="its problems come without an answer that can be shown",
            fix="set learner.warm_start.steps_max=0, or choose another task",
        )
