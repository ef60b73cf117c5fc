"""Compare the roofline, fitted from one timed decode, with published milliseconds per token, measured or modelled.

One setting of each GPU and model gives the efficiency: the one nearest to ``--timed`` rollouts at once. The errors are
those of all other settings, ``|predicted / given - 1|``: ``modelled`` is aiconfigurator's Qwen3-8B on six GPU types,
``measured`` vLLM with ten models on an RTX 4090 and an H100, ``measured_busy`` those of it with more than 32 at once.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from bench.machine import Outcome
from capacity.catalogue.served import TIMED_CONCURRENCY, measured_decodes, modelled_decodes
from capacity.model.roofline import TimedDecode, fit_efficiency, predicted_ms

BUSY = 32.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timed", type=float, default=TIMED_CONCURRENCY, help="rollouts in the timed decode")


def run(arguments: argparse.Namespace) -> Outcome:
    modelled = errors(modelled_decodes(), arguments.timed)
    measured = errors(measured_decodes(), arguments.timed)
    sets = {
        "modelled": [error for _, error in modelled],
        "measured": [error for one, error in measured if one.concurrency <= BUSY],
        "measured_busy": [error for one, error in measured if one.concurrency > BUSY],
    }
    for name in ("modelled", "measured"):
        pairs = modelled if name == "modelled" else measured
        for gpu in dict.fromkeys(one.gpu.name for one, _ in pairs):
            sets[f"{name}_{gpu}"] = [error for one, error in pairs if one.gpu.name == gpu]
    figures = {}
    for name, found in sets.items():
        figures[f"{name}_error_median"] = median(found)
        figures[f"{name}_error_max"] = max(found)
        figures[f"{name}_settings"] = float(len(found))
    return Outcome({"timed": arguments.timed}, figures)


def errors(decodes: Iterable[TimedDecode], timed_concurrency: float) -> list[tuple[TimedDecode, float]]:
    """Return each setting but the timed ones with its relative error."""
    groups: dict[tuple[str, str], list[TimedDecode]] = defaultdict(list)
    for one in decodes:
        groups[one.gpu.name, one.model.name].append(one)
    found = []
    for group in groups.values():
        timed = _timed(group, timed_concurrency)
        efficiency = fit_efficiency(timed)
        found += [
            (one, abs(predicted_ms(one, efficiency) / one.ms_per_token - 1.0)) for one in group if one is not timed
        ]
    return found


def _timed(group: Sequence[TimedDecode], concurrency: float) -> TimedDecode:
    return min(group, key=lambda one: (abs(one.concurrency - concurrency), one.context))
