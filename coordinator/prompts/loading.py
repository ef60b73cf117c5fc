"""Load a run's task: its mixture of prompts, its evaluation sets, its tokenizer and its running verifiers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from coordinator.config.config import CoordinatorConfig
from coordinator.config.tasks import MixtureTask, RowsConfig
from coordinator.prompts.tokenizers import run_tokenizer
from coordinator.tasks.build import EVALUATION, build_single, build_task, part_seed, stages_of
from coordinator.tasks.checks.task import Problem, TaskAdapter
from coordinator.tasks.evaluation_sets import EvaluationSet, pick, texts_of, with_held_out
from coordinator.tasks.mixture import PromptMixture, default_held_out
from coordinator.tasks.multi_task import Mixed
from coordinator.tasks.row_spool import TaskThread
from coordinator.tasks.token_limits import TokenLimits
from coordinator.tasks.volatility import Volatility
from rollcast.runtime.errors import TaskError
from rollcast.runtime.waits import deadline
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


async def load(
    config: CoordinatorConfig,
    mixture_position: str | None,
    start: Callable[[], Coroutine[Any, Any, None]],
    thread: TaskThread,
    volatility: Volatility | None,
) -> Loaded:
    """Build the mixture and the evaluation sets; ``start`` starts the verifiers meanwhile."""
    starting = asyncio.create_task(start())
    try:
        async with deadline(_load_deadline_s(config), "the task to load"):
            mixture, sets = await thread.run(lambda: _mixture(config, mixture_position, volatility))
        await starting
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
    return Loaded(mixture, sets, SkipLog(mixture))


def try_task(config: CoordinatorConfig) -> str:
    """Load the task and the evaluation sets as a run would, without verifiers; return a sentence about them.

    It takes as long as the task's data are large.

    Raises:
        TaskError, ModelError, MissingExtra: the run would not start.
    """
    mixture, sets = _mixture(config, None, None)
    mixture.sample(1)
    held_out = ", ".join(f"{len(one.examples)} of {name}" for name, one in sets.items())
    return f"the task has problems to train on; held out: {held_out}; skipped so far: {sum(mixture.skipped.values())}"


def _load_deadline_s(config: CoordinatorConfig) -> float:
    tasks = [part.task for part in config.task.parts] if isinstance(config.task, MixtureTask) else [config.task]
    tasks += [one.task for one in config.evaluation_sets.values()]
    rows = any(isinstance(task, RowsConfig) for task in tasks)
    return ROWS_LOAD_DEADLINE_S if rows else GENERATOR_LOAD_DEADLINE_S


def _mixture(
    config: CoordinatorConfig, position: str | None, volatility: Volatility | None
) -> tuple[PromptMixture, Mapping[str, EvaluationSet]]:
    seed, sampling = config.run.seed, config.sampling
    task = build_task(config.task, seed)
    others = {
        name: build_single(one.task, part_seed(seed, EVALUATION + name)) for name, one in config.evaluation_sets.items()
    }
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
        wanted=volatility.wanted if volatility else _always,
    )
    if position is not None:
        mixture.restore(position)
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


def _always(problem_id: str, times: int, step: int) -> bool:
    return True


def _tokenizer(task: TaskAdapter | Mixed, others: Sequence[TaskAdapter]) -> Tokenizer:
    """Build a tokenizer of the training task's wording and of all characters that it or an evaluation set uses."""
    pieces, characters = task.wording(), set(task.characters())
    for other in others:  # their wording need not be covered by pieces
        characters.update(other.characters(), *other.wording())
    return Tokenizer(pieces, "".join(sorted(characters)))
