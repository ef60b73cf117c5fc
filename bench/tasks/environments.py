"""Train on the shipped environments: reward of the first and of the last batches. Also score hostile programs.

Each run is a whole one on this machine: warm start, coordinator, peers, environments in processes of their own. The
rewards are those of the episodes that were trained on: ``NAME_before`` is the mean of the first FIRST_STEPS batches,
``NAME_after`` of the last LAST_STEPS. ``retokenised`` counts the tokens of episodes that
were tokenised again or changed between two turns, over all shipped chat templates and the runs of one agent.
``turns_lost`` counts acknowledged turns that a coordinator lost which was killed KILLS times (`python -m bench turns`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import runs
from bench.durability import turns
from bench.machine import Outcome, alone
from bench.tasks import hostile
from bench.tasks.retokenised import retokenised_by_templates, retokenised_in_run
from coordinator.config.environments import GymTask, VerifiersTask
from rollcast.cli.files import load
from rollcast.cli.up_config import UpConfig

EXAMPLES = {
    "calculator": Path("examples/calculator/run.toml"),
    "guessing": Path("examples/guessing/run.toml"),
    "telling": Path("examples/telling/run.toml"),
    "verifiers": Path("examples/verifiers-recall/run.toml"),
}
HOSTILE = "hostile"
KILLS = 20  # of a coordinator that plays episodes
FIRST_STEPS = 2
LAST_STEPS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=[*EXAMPLES, HOSTILE], help="measure this alone")
    parser.add_argument("--set", action="append", default=[], help="override a setting of the files: section.key=value")
    parser.add_argument(
        "--verifiers-python",
        default=os.environ.get("ROLLCAST_VERIFIERS_PYTHON", ""),
        help="interpreter with the package verifiers; without it that example is left out",
    )


def run(arguments: argparse.Namespace) -> Outcome:
    names = [name for name in EXAMPLES if arguments.only in (None, name)]
    figures: dict[str, float] = {}
    missing: list[str] = []
    changed = retokenised_by_templates()
    with alone(), tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        for name in names:
            settings = [*arguments.set, f'coordinator.task.path="{task_path(name)}"']
            if name == "verifiers":
                if not arguments.verifiers_python:
                    missing += [f"{name}_before", f"{name}_after", f"{name}_s"]
                    continue
                settings.append(f'coordinator.task.python="{arguments.verifiers_python}"')
            started_s = time.monotonic()
            summary = runs.run(EXAMPLES[name], Path(folder), settings, runs.Story())
            rewards = batch_rewards(Path(summary["run_folder"]))
            figures[f"{name}_before"] = mean(rewards[:FIRST_STEPS])
            figures[f"{name}_after"] = mean(rewards[-LAST_STEPS:])
            figures[f"{name}_s"] = time.monotonic() - started_s
            config = load(EXAMPLES[name], "up", settings)
            assert isinstance(config, UpConfig)
            changed += retokenised_in_run(Path(summary["run_folder"]), config.coordinator)
        if arguments.only in (None, HOSTILE):
            figures |= asyncio.run(hostile.figures())
        if arguments.only is None:
            figures["turns_lost"] = turns.figures_of(KILLS)["turns_lost"]
    figures["retokenised"] = changed
    settings_used: dict[str, Any] = {"only": arguments.only or "", "set": arguments.set}
    return Outcome(settings_used, figures, tuple(missing))


def task_path(name: str) -> str:
    """Return the example's file, which it names relative to its own folder, as seen from the repository's root."""
    config = load(EXAMPLES[name], "up", [])
    assert isinstance(config, UpConfig)
    assert isinstance(config.coordinator.task, (GymTask, VerifiersTask))
    return str(EXAMPLES[name].parent / config.coordinator.task.path)


def batch_rewards(run_folder: Path) -> list[float]:
    """Return the mean reward of each step's batch, as the learner reported it."""
    with closing(sqlite3.connect(f"file:{run_folder / 'store.sqlite'}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT figures FROM steps ORDER BY step").fetchall()
    return [float(json.loads(figures)["reward_mean"]) for (figures,) in rows]


def mean(values: list[float]) -> float:
    """Return the mean; NaN of none."""
    return sum(values) / len(values) if values else float("nan")
