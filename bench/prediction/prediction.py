"""Compare predictions with simulations: learner utilisation, T_bcast and mean staleness, over a grid of fleets.

Each point is a fleet of given speeds, lengths, links, S and kappa (bench/prediction/grid.py). It is predicted
(capacity/predict/prediction.py), then simulated with the real cores of coordinator and workers (rollcast/sim). An
error is |predicted - simulated| / simulated; ``error_median`` and ``error_max`` cover all three figures of all points.
With --local a real run is calibrated and the rest of it predicted (bench/prediction/local.py).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from statistics import median
from typing import Any

from bench.machine import Outcome
from bench.prediction import local
from bench.prediction.grid import Setting, grid
from rollcast.sim.validation import Validation, validate

_WORST_LISTED = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=100, help="learner steps that are compared at each point")
    parser.add_argument("--warm-up-steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="measure only every n-th point of the grid")
    parser.add_argument("--local", action="store_true", help="compare with a real run on this machine")
    local.add_arguments(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    if arguments.local:
        return local.run(arguments)
    points = grid()[:: arguments.every]
    errors: list[tuple[float, str]] = []
    figures: dict[str, float] = {}
    violations = 0
    for setting in points:
        demand, workers_on, conduct = setting.build()
        validation = validate(
            *(demand, workers_on, conduct),
            seed=arguments.seed,
            warm_up_steps=arguments.warm_up_steps,
            steps=arguments.steps,
        )
        words = in_words(setting)
        print(_line(words, validation), file=sys.stderr, flush=True)
        figures |= _row(setting.name, validation)
        errors += [(error, f"{name} at {words}") for name, error in validation.errors().items()]
        violations += validation.violations
    values = [error for error, _ in errors]
    worst = sorted(errors, reverse=True)[:_WORST_LISTED]
    settings: dict[str, Any] = {
        "steps": arguments.steps,
        "warm_up_steps": arguments.warm_up_steps,
        "seed": arguments.seed,
        "points": {setting.name: in_words(setting) for setting in points},
        "worst": [f"{error:.1%} {where}" for error, where in worst],
    }
    summary = {
        "error_median": median(values),
        "error_max": max(values),
        "error_p95": sorted(values)[int(0.95 * len(values))],
        "errors_above_10_percent": float(sum(value > 0.1 for value in values)),
        "points": float(len(points)),
        "violations": float(violations),
    }
    return Outcome(settings, summary | figures)


def in_words(setting: Setting) -> str:
    """Return the settings that differ from the base of the grid, as text."""
    base = Setting()
    changed = [
        f"{one.name}={getattr(setting, one.name)}"
        for one in fields(Setting)
        if one.name not in ("name", "conduct") and getattr(setting, one.name) != getattr(base, one.name)
    ]
    if not setting.conduct.whole_batches:
        changed.append("one_by_one")
    return " ".join(changed) or "base"


def _row(name: str, validation: Validation) -> dict[str, float]:
    found, said = validation.simulated, validation.predicted
    figures = ("utilisation", "t_bcast_s", "mean_staleness", "dropped_share")
    pairs = [(figure, getattr(said, figure), getattr(found, figure)) for figure in figures]
    return {
        f"{name}_{figure}_{kind}": value
        for figure, predicted, simulated in pairs
        for kind, value in (("predicted", predicted), ("simulated", simulated))
    }


def _line(words: str, validation: Validation) -> str:
    said, found = validation.predicted, validation.simulated
    worst = max(validation.errors().values(), default=0.0)
    return (
        f"{words:<60} utilisation {said.utilisation:.3f}/{found.utilisation:.3f}  "
        f"T_bcast {said.t_bcast_s:.1f}/{found.t_bcast_s:.1f}  "
        f"staleness {said.mean_staleness:.2f}/{found.mean_staleness:.2f}  "
        f"dropped {said.dropped_share:.3f}/{found.dropped_share:.3f}  worst {worst:.1%}"
    )
