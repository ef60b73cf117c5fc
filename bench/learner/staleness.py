"""Measure how stale rollouts affect learning: the demonstration task, trained with every rollout exactly S steps old.

``ALGORITHM_sN``: held-out exact match after training with staleness N, the mean over seeds; ``..._lowest`` that of the
worst seed where there are several; ``..._kl_k3`` the mean k3 estimate of KL between behaviour and policy on the way.
``before``: after the warm start. With --presets: every preset with rewards at S = 2. Further algorithms are
"uncorrected", which is grpo without ratio and clip, and "gspo-wide", with a clip for short answers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.learner.demonstration import Course, Demonstration, reported_settings
from bench.machine import Outcome
from learner.objective.config import ALGORITHMS
from learner.training.trainer import Trainer
from rollcast.cli.files import load
from rollcast.cli.up_config import UpConfig
from rollcast.policy.compilation import use_compilation_cache
from rollcast.runtime.errors import ConfigError

PRESETS_STALENESS = 2
DEFAULT_ALGORITHMS = ("grpo", "truncated-is", "uncorrected", "decoupled-ppo", "two-sided", "cispo", "gspo-wide")

#: Presets that learn from the task's rewards; the demonstration has no teacher to distil from.
REWARDED = tuple(name for name in ALGORITHMS if name != "distillation")

#: Name -> what it gives as learner.objective.
OBJECTIVES: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in REWARDED},
    "ppo": {"algorithm": "ppo", "critic": {"learning_rate": 1e-3}},  # as in configs/local.toml
    "uncorrected": {"surrogate": "log-probability"},
    # The preset's clip is for answers of thousands of tokens, whose mean log-ratio hardly moves.
    "gspo-wide": {"algorithm": "gspo", "clip_low": 0.1, "clip_high": 0.15},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))
    parser.add_argument("--set", action="append", default=[], help="override a setting of the file: section.key=value")
    parser.add_argument("--algorithms", default=",".join(DEFAULT_ALGORITHMS), help="comma-separated")
    parser.add_argument("--staleness", default="0,2,6,11,24", help="learner steps, comma-separated")
    parser.add_argument("--presets", action="store_true", help=f"every preset at S = {PRESETS_STALENESS} instead")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "rollcast-staleness")


def run(arguments: argparse.Namespace) -> Outcome:
    names = list(REWARDED) if arguments.presets else _names(arguments.algorithms)
    lags = [PRESETS_STALENESS] if arguments.presets else [int(lag) for lag in arguments.staleness.split(",")]
    use_compilation_cache(arguments.cache / "compiled")
    config = load(arguments.config, "up", arguments.set)
    assert isinstance(config, UpConfig)
    courses: dict[tuple[str, int], list[Course]] = {(name, lag): [] for name in names for lag in lags}
    first = config.coordinator.run.seed
    for seed in range(first, first + arguments.seeds):
        demonstration = Demonstration(config, seed, arguments.cache)
        for name in names:
            learner = demonstration.learner(OBJECTIVES[name], arguments.learning_rate)
            trainer = Trainer(demonstration.model, learner)
            for lag in lags:
                course = demonstration.train(learner, trainer, lag, arguments.steps)
                courses[name, lag].append(course)
                course.report(f"seed {seed} {name} S={lag}")
    settings = reported_settings(arguments) | {
        "learning_rate": arguments.learning_rate,
        "objectives": {name: OBJECTIVES[name] for name in names},
    }
    return Outcome(settings, figures_of(courses))


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in OBJECTIVES:
            raise ConfigError(f"there is no algorithm {name!r}", fix=f"choose from {', '.join(OBJECTIVES)}")
    return names


def figures_of(courses: dict[tuple[str, int], list[Course]]) -> dict[str, float]:
    """Return the figures of all trainings by algorithm and staleness; see the module's docstring."""
    figures = {"before": fmean(course.before for of_seeds in courses.values() for course in of_seeds)}
    for (name, lag), of_seeds in courses.items():
        key = f"{name.replace('-', '_')}_s{lag}"
        figures[key] = fmean(course.after for course in of_seeds)
        if len(of_seeds) > 1:
            figures[f"{key}_lowest"] = min(course.after for course in of_seeds)
        figures[f"{key}_kl_k3"] = fmean(course.means["kl_k3"] for course in of_seeds)
    return figures
