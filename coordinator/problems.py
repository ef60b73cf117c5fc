"""The run's problems: drawn, demonstrated, held out and scored."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import structlog

from coordinator.config import CoordinatorConfig
from coordinator.events import Prompt
from coordinator.tasks.adapter import Problem
from coordinator.tasks.build import build_task, task_config_to_json
from coordinator.tasks.mixture import Example, PromptMixture
from coordinator.tasks.thread import TaskThread
from coordinator.verifier_pool import Verdict, VerifierPool, VerifyItem
from rollcast.runtime.errors import MalformedMessage
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import RolloutId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.tokenizer import Tokenizer

T = TypeVar("T")

GENERATOR_DEADLINE_S = 120.0  # for one request to the task's generator, a cold import included
PROBLEMS_KEPT = 65_536  # drawn and possibly still to be scored; far more than the core keeps open
SKIPS_LOGGED_EVERY_S = 60.0

log = structlog.get_logger()


class Problems:
    """One front for the task, its mixture and its verifiers."""

    def __init__(
        self, mixture: PromptMixture, tokenizer: Tokenizer, pool: VerifierPool, thread: TaskThread, held_out: int
    ) -> None:
        self.tokenizer = tokenizer
        self._mixture = mixture
        self._skips = SkipLog(mixture)
        self._pool = pool
        self._held_out = mixture.held_out(held_out)
        self._drawn: OrderedDict[str, Problem] = OrderedDict()
        self._thread = thread

    @classmethod
    async def start(
        cls, config: CoordinatorConfig, mixture_position: str | None, drawn: Sequence[Problem] = ()
    ) -> Problems:
        """Load the task, set its problems apart, start its verifiers; go on with the mixture at a saved position.

        ``drawn``: problems drawn before that may still have to be scored.

        Raises:
            TaskError: the task or its data is wrong, or too small for the held-out problems.
            MissingExtra: its library is not installed.
        """
        verifier = config.verifier
        pool = VerifierPool(
            task_config_to_json(config.task),
            config.run.seed,
            verifier.processes,
            verifier.timeout_s,
            verifier.queue_max,
        )
        thread = TaskThread()
        starting = asyncio.create_task(pool.start())
        try:
            async with deadline(GENERATOR_DEADLINE_S, "the task to load"):
                mixture, tokenizer = await thread.run(lambda: _load(config, mixture_position))
            await starting
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            thread.close()
            await pool.close()
            raise
        problems = cls(mixture, tokenizer, pool, thread, config.held_out_problems)
        problems._keep(drawn)
        return problems

    async def close(self) -> None:
        """End the verifiers and the thread."""
        self._thread.close()
        await self._pool.close()

    async def draw(self, count: int) -> tuple[Prompt, ...]:
        """The next problems of the mixture.

        Raises:
            TaskError: the task has no more problem that can be used.
        """
        drawn = await self._in_thread(lambda: self._mixture.draw(count))
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
        found = await self._in_thread(lambda: self._mixture.examples(count, flawed=flawed, cursor=cursor))
        return _to_pb(found)

    def held_out(self, count: int) -> list[pb.Example]:
        """Problems never trained on, without answers."""
        return _to_pb(self._held_out[:count])

    async def score(self, rollout_id: RolloutId, problem_id: str, token_ids: Sequence[int]) -> Verdict:
        """Verify one completion of a drawn problem."""
        text = self.tokenizer.decode(token_ids)
        return await self._pool.score(VerifyItem(rollout_id, self._drawn[problem_id], text))

    async def score_held_out(self, example_id: int, token_ids: Sequence[int]) -> Verdict:
        """Verify one completion of a held-out problem.

        Raises:
            MalformedMessage: there is no such problem.
        """
        if not 0 <= example_id < len(self._held_out):
            raise MalformedMessage(f"there is no held-out problem {example_id}")
        problem = self._held_out[example_id].problem
        return await self._pool.score(VerifyItem(example_id, problem, self.tokenizer.decode(token_ids)))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with deadline(GENERATOR_DEADLINE_S, "the task's generator"):
            result = await self._thread.run(work)
        self._skips.look(time.monotonic())
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
        counts = {
            "prompt_too_long": self._mixture.skipped_too_long,
            "answer_too_long": self._mixture.skipped_answer_too_long,
            "unknown_characters": self._mixture.skipped_unknown_characters,
        }
        if counts == self._logged or not any(counts.values()):
            return
        log.warning("problems skipped", **counts)
        self._logged, self._next_at_s = counts, now_s + SKIPS_LOGGED_EVERY_S


def _load(config: CoordinatorConfig, mixture_position: str | None) -> tuple[PromptMixture, Tokenizer]:
    task = build_task(config.task, config.run.seed)
    tokenizer = Tokenizer(task.wording(), task.characters())
    mixture = PromptMixture(
        task,
        tokenizer,
        config.run.seed,
        config.held_out_problems,
        config.sampling.prompt_tokens_max,
        config.sampling.new_tokens_max,
    )
    if mixture_position is not None:
        mixture.restore(mixture_position)
    return mixture, tokenizer


def _to_pb(examples: Iterable[Example]) -> list[pb.Example]:
    return [
        pb.Example(
            example_id=example.example_id,
            prompt_token_ids=example.prompt_token_ids,
            answer_token_ids=example.answer_token_ids,
        )
        for example in examples
    ]
