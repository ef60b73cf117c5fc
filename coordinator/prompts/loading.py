"""Load a run's task: its mixture of prompts, its evaluation sets, its tokenizer and its running verifiers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from coordinator.config.config import CoordinatorConfig
from coordinator.config.tasks import MixtureTask, RowsConfig
from coordinator.environments.pool import EnvironmentPool
from coordinator.prompts.tokenizers import run_tokenizer
from coordinator.tasks.build import (
    EVALUATION,
    build_single,
    build_task,
    environments_of,
    part_seed,
    stages_of,
    with_evaluation,
)
from coordinator.tasks.checks.task import Problem, TaskAdapter
from coordinator.tasks.evaluation_sets import EvaluationSet, pick, texts_of, with_held_out
from coordinator.tasks.mixture import PromptMixture, default_held_out, parts_of
from coordinator.tasks.multi_task import Mixed
from coordinator.tasks.part_stream import Wanted
from coordinator.tasks.row_spool import TaskThread
from coordinator.tasks.rows import Rows
from coordinator.tasks.token_limits import TokenLimits
from coordinator.tasks.volatility import Volatility
from coordinator.verifiers.build import build_scorer
from rollcast.runtime.errors import TaskError
from rollcast.runtime.waits import cancel_and_wait, deadline
from rollcast.wire.text.tokenizer import Tokenizer

GENERATOR_LOAD_DEADLINE_S = 120.0  # includes a cold import
ROWS_LOAD_DEADLINE_S = 3600.0  # enough to read millions of rows over a network
SKIPS_LOGGED_EVERY_S = 60.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The components of a task that take seconds to build."""

    mixture: PromptMixture
    sets: Mapping[str, EvaluationSet]
    skips: SkipLog


class SkipLog:
    """Logs how many problems were skipped: when the counts have grown, and at most once a minute."""

    def __init__(self, mixture: PromptMixture) -> None:
        self._mixture = mixture
        self._logged: dict[str, int] = {}
        self._next_at_s = 0.0

    def log_changes(self, now_s: float) -> None:
        """Log the counts if they have changed and a minute has passed."""
        if now_s < self._next_at_s:
            return
        counts = dict(self._mixture.skipped)
        if counts == self._logged or not any(counts.values()):
            return
        log.warning("problems skipped", **counts)
        self._logged, self._next_at_s = counts, now_s + SKIPS_LOGGED_EVERY_S


class TaskLoading:
    """A task that loads: a thread reads its data while its verifiers and environments start.

    It needs nothing of the run's state, so that a standby has it ready before it leads. ``resumed`` then continues at
    the run's position.
    """

    def __init__(self, config: CoordinatorConfig) -> None:
        task = with_evaluation(config.task, config.evaluation_sets)
        self.scorer = build_scorer(task, config.run.seed, config.verifier, tokenizer_folder=config.tokenizer.folder)
        specs, pool = environments_of(config.task, config.evaluation_sets), config.environments
        self.environments = EnvironmentPool(specs, pool.processes, pool.episodes_max) if specs else None
        self.thread = TaskThread()
        self._volatility: Volatility | None = None
        self._read: list[Rows] = []
        self._is_closed = False
        self._loading = asyncio.create_task(self._load(config))

    async def loaded(self) -> Loaded:
        """Wait until the task has loaded.

        Raises:
            TaskError: the task or its data is wrong, or too small for the held-out problems.
            ModelError: the model's tokenizer cannot be used.
            MissingExtra: a library of the task is not installed.
        """
        return await asyncio.shield(self._loading)

    async def resumed(self, mixture_position: str | None, volatility: Volatility | None) -> Loaded:
        """Wait until the task has loaded, and continue its mixture.

        Args:
            mixture_position: saved position of the mixture; None: its start.
            volatility: chooses the problems to sample again; None: all of them are.

        Raises:
            TaskError: the position is not one of this task; see also ``loaded``.
        """
        self._volatility = volatility
        loaded = await self.loaded()
        if mixture_position is not None:
            await self.thread.run(lambda: loaded.mixture.restore(mixture_position))
        return loaded

    def progress(self) -> str:
        """Return what the loading does now, for people."""
        rows = sum(one.rows_read for one in self._read)
        return f"loading the task: {rows:,} rows read" if rows else "loading the task"

    async def close(self) -> None:
        """Stop loading, then the verifiers and the environments, which it may be starting; a second call is ignored."""
        if self._is_closed:
            return
        self._is_closed = True
        await cancel_and_wait(self._loading)
        self.thread.close()
        await asyncio.gather(self.scorer.close(), *([] if self.environments is None else [self.environments.close()]))

    async def _load(self, config: CoordinatorConfig) -> Loaded:
        starting = asyncio.create_task(self._start_workers())
        try:
            async with deadline(_load_deadline_s(config), "the task to load"):
                mixture, sets = await self.thread.run(lambda: _mixture(config, self._wanted, self._read))
            await starting
        except BaseException:
            await cancel_and_wait(starting)
            raise
        return Loaded(mixture, sets, SkipLog(mixture))

    async def _start_workers(self) -> None:
        """Start the verifiers and the environments; if either does not start, the other one is stopped.

        Raises:
            TaskError: see Scorer.start and EnvironmentPool.start.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.scorer.start())
                if self.environments is not None:
                    group.create_task(self.environments.start())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _wanted(self, problem_id: str, times: int, step: int) -> bool:
        return self._volatility is None or self._volatility.wanted(problem_id, times, step)


def try_task(config: CoordinatorConfig) -> str:
    """Load the task and the evaluation sets as a run would, without verifiers; return a sentence about them.

    It takes as long as the task's data are large.

    Raises:
        TaskError, ModelError, MissingExtra: the run would not start.
    """
    mixture, sets = _mixture(config)
    mixture.sample(1)
    held_out = ", ".join(f"{len(one.examples)} ({name})" for name, one in sets.items())
    skipped = sum(mixture.skipped.values())
    return (
        f"the task has problems to train on; problems for evaluation: {held_out or 'none'}"
        f"{f'; {skipped} that do not fit were skipped' if skipped else ''}"
    )


def _load_deadline_s(config: CoordinatorConfig) -> float:
    tasks = [part.task for part in config.task.parts] if isinstance(config.task, MixtureTask) else [config.task]
    tasks += [one.task for one in config.evaluation_sets.values()]
    rows = any(isinstance(task, RowsConfig) for task in tasks)
    return ROWS_LOAD_DEADLINE_S if rows else GENERATOR_LOAD_DEADLINE_S


def _always(problem_id: str, times: int, step: int) -> bool:
    return True


def _mixture(
    config: CoordinatorConfig, is_wanted: Wanted = _always, read: list[Rows] | None = None
) -> tuple[PromptMixture, Mapping[str, EvaluationSet]]:
    """Build the mixture and the evaluation sets; ``read`` receives the tasks of rows before they are read."""
    seed, sampling = config.run.seed, config.sampling
    task = build_task(config.task, seed)
    others = {
        name: build_single(one.task, part_seed(seed, EVALUATION + name)) for name, one in config.evaluation_sets.items()
    }
    if read is not None:
        tasks = [*(part.adapter for part in parts_of(task)), *others.values()]
        read.extend(one for one in tasks if isinstance(one, Rows))
    tokenizer = run_tokenizer(config.tokenizer, lambda: _tokenizer(task, list(others.values())))
    limits = TokenLimits(tokenizer, sampling.prompt_tokens_max, sampling.new_tokens_max)
    sets: list[EvaluationSet] = []
    stages = stages_of(config.task)
    held_out = config.held_out_problems or default_held_out(task, stages)
    first_id = held_out
    for name, adapter in others.items():
        wanted = config.evaluation_sets[name].problems
        sets.append(pick(name, EVALUATION + name, adapter, limits, wanted, first_id))
        first_id += len(sets[-1].examples)
    mixture = PromptMixture(
        task,
        tokenizer,
        seed,
        held_out,
        sampling.prompt_tokens_max,
        sampling.new_tokens_max,
        stages=stages,
        kept_out=texts_of(sets),
        wanted=is_wanted,
    )
    own = mixture.held_out(held_out)
    for example in own:
        check_agents(example.problem, config.run.samples_per_group)
    return mixture, with_held_out(own, sets)


def check_agents(problem: Problem, samples_per_group: int) -> None:
    """Refuse a game whose agents cannot share the samples of a group.

    Raises:
        TaskError: the samples are no whole number of games.
    """
    agents = problem.data.get("agents", ())
    if agents and samples_per_group % len(agents):
        raise TaskError(
            f"the game {problem.problem_id} has {len(agents)} agents, and a group {samples_per_group} samples",
            cause="each agent of a game takes one sample of its group",
            fix=f"set run.samples_per_group to a multiple of {len(agents)}, twice as many at least",
        )


def _tokenizer(task: TaskAdapter | Mixed, others: Sequence[TaskAdapter]) -> Tokenizer:
    """Build a tokenizer of the training task's wording and of all characters that it or an evaluation set uses."""
    pieces, characters = task.wording(), set(task.characters())
    for other in others:  # their wording need not be covered by pieces
        characters.update(other.characters(), *other.wording())
    return Tokenizer(pieces, "".join(sorted(characters)))
