"""The run's problems: drawn, demonstrated, held out and scored."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog

from coordinator.config import CoordinatorConfig
from coordinator.events import Prompt
from coordinator.tasks.adapter import Problem, TaskAdapter
from coordinator.tasks.build import (
    EVALUATION,
    build_single,
    build_task,
    part_seed,
    stages_of,
    task_config_to_json,
    with_evaluation,
)
from coordinator.tasks.evaluation_sets import HELD_OUT, EvaluationSet, pick, texts_of, with_held_out
from coordinator.tasks.mixed import Mixed
from coordinator.tasks.mixture import Example, PromptMixture
from coordinator.tasks.thread import TaskThread
from coordinator.tasks.tokenizers import kept_tokenizer, run_tokenizer
from coordinator.tasks.usable import TokenLimits
from coordinator.verifier_pool import Verdict, VerifierPool, VerifyItem
from rollcast.runtime.errors import MalformedMessage, TaskError
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import RolloutId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.tokenizer import TextTokenizer, Tokenizer

T = TypeVar("T")

GENERATOR_DEADLINE_S = 120.0  # for one request to the task's generator, a cold import included
PROBLEMS_KEPT = 65_536  # drawn and possibly still to be scored; far more than the core keeps open
SKIPS_LOGGED_EVERY_S = 60.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What takes seconds to make."""

    mixture: PromptMixture
    sets: Mapping[str, EvaluationSet]
    skips: SkipLog


class Problems:
    """One front for the task, its mixture and its verifiers.

    Loading the task's library and starting the verifiers takes seconds, and uploads need neither: a coordinator that
    knows the tokenizer already goes on at once, and whoever asks for problems waits for them.
    """

    def __init__(
        self, tokenizer: TextTokenizer, pool: VerifierPool, thread: TaskThread, loading: asyncio.Task[_Loaded]
    ) -> None:
        self.tokenizer = tokenizer
        self._pool = pool
        self._thread = thread
        self._loading = loading
        self._drawn: OrderedDict[str, Problem] = OrderedDict()

    @classmethod
    async def start(
        cls,
        config: CoordinatorConfig,
        mixture_position: str | None,
        drawn: Sequence[Problem] = (),
        tokenizer_json: str | None = None,
    ) -> Problems:
        """Load the task, set its problems apart, start its verifiers; go on with the mixture at a saved position.

        ``drawn``: problems drawn before that may still have to be scored. ``tokenizer_json``: of the run's own, once
        it has one; then the task is not waited for, see ``failed``.

        Raises:
            TaskError: the task or its data is wrong, or too small for the held-out problems.
            ModelError: the model's tokenizer cannot be used.
            MissingExtra: its library is not installed.
        """
        verifier = config.verifier
        pool = VerifierPool(
            task_config_to_json(with_evaluation(config.task, config.evaluation_sets)),
            config.run.seed,
            verifier.processes,
            verifier.timeout_s,
            verifier.queue_max,
        )
        thread = TaskThread()
        loading = asyncio.create_task(_load(config, mixture_position, pool, thread))
        try:
            if tokenizer_json is None:
                tokenizer = (await loading).mixture.tokenizer
            else:
                tokenizer = await asyncio.to_thread(kept_tokenizer, config.tokenizer, tokenizer_json)
        except BaseException:
            loading.cancel()
            thread.close()
            await pool.close()
            raise
        problems = cls(tokenizer, pool, thread, loading)
        problems._keep(drawn)
        return problems

    async def failed(self) -> Exception:
        """Returns what kept the task from loading; never if it loads."""
        try:
            loaded = await asyncio.shield(self._loading)
        except Exception as error:
            return error
        if loaded.mixture.tokenizer.to_json() != self.tokenizer.to_json():
            return TaskError(
                "the task has another wording than when the run began",
                cause="its prompts and answers use other pieces or characters",
                fix="restore the task's settings and files, or choose another run_folder",
            )
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """End the verifiers and the thread."""
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)
        self._thread.close()
        await self._pool.close()

    async def draw(self, count: int) -> tuple[Prompt, ...]:
        """The next problems of the mixture.

        Raises:
            TaskError: the task has no more problem that can be used.
        """
        drawn = await self._in_thread(lambda mixture: mixture.draw(count))
        self._keep(one.problem for one in drawn)
        return tuple(Prompt(one.problem.problem_id, one.prompt_token_ids, one.position) for one in drawn)

    def _keep(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self._drawn[problem.problem_id] = problem
            self._drawn.move_to_end(problem.problem_id)
        while len(self._drawn) > PROBLEMS_KEPT:
            self._drawn.popitem(last=False)

    def drawn(self, problem_id: str) -> Problem:
        """A problem that was drawn."""
        return self._drawn[problem_id]

    async def examples(self, count: int, *, flawed: bool, cursor: int) -> list[pb.Example]:
        """Labelled problems for the warm start, none held out.

        Raises:
            TaskError: the task has no demonstrations.
        """
        found = await self._in_thread(lambda mixture: mixture.examples(count, flawed=flawed, cursor=cursor))
        return _to_pb(found)

    async def held_out(self, count: int, name: str = HELD_OUT) -> list[pb.Example]:
        """Problems of an evaluation set, never trained on, without answers.

        Raises:
            TaskError: there is no such set.
        """
        sets = (await self._loaded()).sets
        if name not in sets:
            raise TaskError(f"there is no evaluation set {name!r}", cause=f"there are {', '.join(sets)}")
        return _to_pb(sets[name].examples[:count])

    async def score(self, rollout_id: RolloutId, problem_id: str, token_ids: Sequence[int]) -> Verdict:
        """Verify one completion of a drawn problem."""
        text = self.tokenizer.decode(token_ids)
        return await self._pool.score(VerifyItem(rollout_id, self._drawn[problem_id], text))

    async def score_held_out(self, example_id: int, token_ids: Sequence[int]) -> Verdict:
        """Verify one completion of a problem of an evaluation set.

        Raises:
            MalformedMessage: there is no such problem.
        """
        _, problem = await self.evaluated(example_id)
        return await self._pool.score(VerifyItem(example_id, problem, self.tokenizer.decode(token_ids)))

    async def evaluated(self, example_id: int) -> tuple[str, Problem]:
        """The evaluation set and the problem of this id.

        Raises:
            MalformedMessage: there is none.
        """
        for name, one in (await self._loaded()).sets.items():
            first = one.examples[0].example_id if one.examples else 0
            if first <= example_id < first + len(one.examples):
                return name, one.examples[example_id - first].problem
        raise MalformedMessage(f"there is no held-out problem {example_id}")

    async def _loaded(self) -> _Loaded:
        return await asyncio.shield(self._loading)

    async def _in_thread(self, work: Callable[[PromptMixture], T]) -> T:
        loaded = await self._loaded()
        async with deadline(GENERATOR_DEADLINE_S, "the task's generator"):
            result = await self._thread.run(lambda: work(loaded.mixture))
        loaded.skips.look(time.monotonic())
        return result


class SkipLog:
    """Says in the log that problems are skipped: when the counts have grown, and at most once a minute."""

    def __init__(self, mixture: PromptMixture) -> None:
        self._mixture = mixture
        self._logged: dict[str, int] = {}
        self._next_at_s = 0.0

    def look(self, now_s: float) -> None:
        """Log what has changed, if it is time."""
        if now_s < self._next_at_s:
            return
        counts = dict(self._mixture.skipped)
        if counts == self._logged or not any(counts.values()):
            return
        log.warning("problems skipped", **counts)
        self._logged, self._next_at_s = counts, now_s + SKIPS_LOGGED_EVERY_S


async def _load(
    config: CoordinatorConfig, mixture_position: str | None, pool: VerifierPool, thread: TaskThread
) -> _Loaded:
    """The mixture, and verifiers that run."""
    starting = asyncio.create_task(pool.start())
    try:
        async with deadline(GENERATOR_DEADLINE_S, "the task to load"):
            mixture, sets = await thread.run(lambda: _mixture(config, mixture_position))
        await starting
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
    return _Loaded(mixture, sets, SkipLog(mixture))


def _mixture(config: CoordinatorConfig, position: str | None) -> tuple[PromptMixture, Mapping[str, EvaluationSet]]:
    seed, sampling = config.run.seed, config.sampling
    task = build_task(config.task, seed)
    others = {
        name: build_single(one.task, part_seed(seed, EVALUATION + name)) for name, one in config.evaluation_sets.items()
    }
    tokenizer = run_tokenizer(config.tokenizer, lambda: _tokenizer(task, list(others.values())))
    limits = TokenLimits(tokenizer, sampling.prompt_tokens_max, sampling.new_tokens_max)
    sets: list[EvaluationSet] = []
    first_id = config.held_out_problems
    for name, adapter in others.items():
        wanted = config.evaluation_sets[name].problems
        sets.append(pick(name, EVALUATION + name, adapter, limits, wanted, first_id))
        first_id += len(sets[-1].examples)
    mixture = PromptMixture(
        task,
        tokenizer,
        seed,
        config.held_out_problems,
        sampling.prompt_tokens_max,
        sampling.new_tokens_max,
        stages=stages_of(config.task),
        kept_out=texts_of(sets),
    )
    if position is not None:
        mixture.restore(position)
    return mixture, with_held_out(mixture.held_out(config.held_out_problems), sets)


def _tokenizer(task: TaskAdapter | Mixed, others: Sequence[TaskAdapter]) -> Tokenizer:
    """Pieces of the training task's wording, and every character that it or an evaluation set uses."""
    pieces, characters = task.wording(), set(task.characters())
    for other in others:  # their wording may be in no piece
        characters.update(other.characters(), *other.wording())
    return Tokenizer(pieces, "".join(sorted(characters)))


def _to_pb(examples: Iterable[Example]) -> list[pb.Example]:
    return [
        pb.Example(
            example_id=example.example_id,
            prompt_token_ids=example.prompt_token_ids,
            answer_token_ids=example.answer_token_ids,
        )
        for example in examples
    ]
