"""`rollcast eval RUN`: measure pass@k of a run's newest version or checkpoint on its evaluation sets and on others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.status import Status
from rich.table import Table

from coordinator.config.config import CoordinatorConfig
from coordinator.config.tasks import EvaluationSetConfig, JsonlTask, ParquetTask
from coordinator.prompts.problems import Problems
from coordinator.prompts.samples import SampleBook
from coordinator.tasks.evaluation_sets import HELD_OUT
from learner.evaluation.pass_at_k import EvaluationResult, check_pass_at
from rollcast.cli.coordinator_api import Target
from rollcast.cli.durations import seconds_of
from rollcast.cli.options import LATEST_RUN, Json
from rollcast.cli.run.evaluate_live import NotByPeers, Wanted, evaluate_live
from rollcast.cli.run.run_tools import run_config, scorer
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import RunFolder


def evaluate(
    run: Path = LATEST_RUN,
    /,
    *,
    learner_folder: Path | None = None,
    set_names: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    data: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    pass_at: Annotated[tuple[int, ...], Parameter(name="--k", negative=())] = (1, 8),
    samples: int = 8,
    problems: int = 512,
    deadline: str = "30m",
    json_output: Json = False,
) -> int:
    """Measure a run's policy, and print pass@k with 95 % intervals.

    While the run is under way its peers evaluate the newest version. Otherwise, or where they cannot, and with
    --learner-folder or --data, this process loads the newest checkpoint and samples the completions itself.
    `rollcast samples` shows the completions afterwards.

    Parameters
    ----------
    run
        The coordinator's run folder.
    learner_folder
        The learner's run folder, which has the checkpoints; the coordinator's by default. The peers are not asked.
    set_names
        Evaluation set of the run, for example held_out; all sets by default. May be repeated.
    data
        Further evaluation set as NAME=FILE, with columns `prompt` and `answer` in JSONL or parquet. Its answers are
        checked like those of the run's task. May be repeated.
    pass_at
        A k of pass@k. May be repeated.
    samples
        Completions per problem, at least the largest k. More give a tighter estimate.
    problems
        Maximum number of problems of each set.
    deadline
        How long the peers may take for each set, as 90s, 15m or 2h.
    json_output
        Print one JSON object.
    """
    config = run_config(run)
    extra = {name: _extra(name, value, config, problems) for name, value in map(_named, data)}
    config = parse_config(
        config.model_dump(mode="json") | {"evaluation_sets": _dumped({**config.evaluation_sets, **extra})},
        CoordinatorConfig,
        source="--data",
    )
    wanted = _wanted(set_names, extra, (HELD_OUT, *config.evaluation_sets))
    check_pass_at(samples, pass_at)
    asked = Wanted(samples, problems, pass_at, seconds_of(deadline))
    console = Console(stderr=True)
    with console.status("loading") as status:
        peers_may = not data and learner_folder is None
        result = _by_peers(run, wanted, asked, status) if peers_may else NotByPeers("")
        if isinstance(result, NotByPeers):
            if result.because:
                console.print(f"sampling the newest checkpoint here, because the peers did not: {result.because}")
            result = _here(config, run, learner_folder or run, wanted, asked, status)
    if json_output:
        print(json.dumps(asdict(result)))
    else:
        _print(result)
    return 0


def _print(result: EvaluationResult) -> None:
    console = Console()
    console.print(f"step {result.step}, {result.seconds:.1f} s", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("set", "problems", "samples", "pass@", "mean", "95 % interval"):
        table.add_column(header, justify="left" if header == "set" else "right")
    for name, one in result.sets.items():
        for k, estimate in one.pass_at.items():
            interval = f"{estimate.low:.3f} to {estimate.high:.3f}"
            table.add_row(name, str(one.problems), str(one.samples), str(k), f"{estimate.mean:.3f}", interval)
    console.print(table)


def _named(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise ConfigError(f"--data {text} has no name and file", fix="write it as NAME=FILE")
    return name, Path(path)


def _wanted(set_names: tuple[str, ...], extra: Collection[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sets to evaluate; all if none is named.

    Raises:
        ConfigError: the run has no set of this name.
    """
    for name in set_names:
        if name not in known:
            raise ConfigError(
                f"the run has no evaluation set {name!r}",
                cause=f"it has {', '.join(known)}",
                fix="pass --set with one of them, or a set of your own with --data NAME=FILE",
            )
    return tuple(dict.fromkeys((*set_names, *extra))) if set_names else known


def _extra(name: str, path: Path, config: CoordinatorConfig, problems: int) -> EvaluationSetConfig:
    check = {"check": config.task.check} if hasattr(config.task, "check") else {}
    task = ParquetTask if path.suffix == ".parquet" or path.is_dir() else JsonlTask
    kind = "parquet" if task is ParquetTask else "jsonl"
    return EvaluationSetConfig(task=task.model_validate({"kind": kind, "path": path, **check}), problems=problems)


def _dumped(sets: Mapping[str, EvaluationSetConfig]) -> dict[str, object]:
    return {name: one.model_dump(mode="json") for name, one in sets.items()}


def _by_peers(run: Path, sets: Sequence[str], asked: Wanted, status: Status) -> EvaluationResult | NotByPeers:
    def progress(name: str, done: int, total: int) -> None:
        status.update(f"{name}: {done} of {total} completions")

    return asyncio.run(evaluate_live(Target(run), sets, asked, progress))


def _here(
    config: CoordinatorConfig, run: Path, learner_folder: Path, sets: Sequence[str], asked: Wanted, status: Status
) -> EvaluationResult:
    def progress(name: str, done: int, total: int) -> None:
        status.update(f"{name}: {done} of {total} problems")

    return asyncio.run(_evaluate(config, RunFolder(run), learner_folder, sets, asked, progress))


async def _evaluate(
    config: CoordinatorConfig,
    folder: RunFolder,
    learner_folder: Path,
    wanted: Sequence[str],
    asked: Wanted,
    progress: Callable[[str, int, int], None],
) -> EvaluationResult:
    """Sample in a thread and score on this loop, which owns the verifier processes."""
    from learner.evaluation.offline import evaluate_run  # imports jax, which peers that evaluate make unnecessary

    source = await Problems.start(config, None)
    try:
        sets = {name: await source.held_out(asked.problems, name) for name in wanted}
        return await asyncio.to_thread(
            evaluate_run,
            learner_folder,
            sets,
            samples=asked.samples,
            pass_at=asked.pass_at,
            score=scorer(source, asyncio.get_running_loop(), SampleBook(folder)),
            seed=config.run.seed,
            progress=progress,
        )
    finally:
        await source.close()
