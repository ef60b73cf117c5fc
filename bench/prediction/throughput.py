"""Compare estimated milliseconds per token with shipped measurements that were held out of every fit.

The engine's shares and times are fitted anew without the held-out rows: those of one model on one GPU type, or on
several GPUs that share it, at a time (``timed``: the GPU's own speed from other models; ``shared``), or those of a
whole GPU type (``untimed``). A modelled GPU with one model only is timed by its decode at 8 rollouts, the other rows
being held out. ``within_share`` is the share of all held-out rows whose error is within the interval that the planner
prints for their kind, ``interval_max`` the largest of these, ``KIND_error_p90`` and ``_max`` the errors. Models below
3B parameters are apart (``small_*``): their interval is that of their own rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from scipy.optimize import least_squares

from bench.machine import Outcome
from capacity.catalogue.served import (
    SMALL_INTERVAL,
    SMALLEST_MODEL,
    TIMED_CONCURRENCY,
    TIMED_INTERVAL,
    UNTIMED_INTERVAL,
    measured_decodes,
    modelled_decodes,
)
from capacity.model.roofline import VLLM, Engine, Links, TimedDecode, predicted_ms

LINKS: tuple[Links, ...] = ("pcie", "nvlink")
INTERVALS = {"timed": TIMED_INTERVAL, "untimed": UNTIMED_INTERVAL, "shared": UNTIMED_INTERVAL}
COMPUTE_SHARE_MAX = 0.8  # of the data sheet's operations: the rows hardly show it, and no engine reaches more
OUTLIER = 0.1  # relative error beyond which a row counts less in the fit


@dataclass(frozen=True, slots=True)
class Fit:
    """An engine, and the speed of each GPU type relative to it."""

    engine: Engine
    speeds: dict[str, float]

    def ms_per_token(self, one: TimedDecode) -> float:
        return predicted_ms(one, self.speeds.get(one.gpu.name, 1.0), self.engine)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="has no effect: nothing is sampled")


def run(arguments: argparse.Namespace) -> Outcome:
    errors = held_out_errors()
    figures: dict[str, float] = {}
    within = rows = 0
    for kind, interval in INTERVALS.items():
        found = np.abs(errors[kind])
        within, rows = within + int((found <= interval).sum()), rows + found.size
        figures[f"{kind}_rows"] = float(found.size)
        figures[f"{kind}_interval"] = interval
        figures[f"{kind}_within_share"] = float((found <= interval).mean())
        figures[f"{kind}_error_p90"] = float(np.quantile(found, 0.9))
        figures[f"{kind}_error_max"] = float(found.max())
    figures = {"within_share": within / rows, "interval_max": max(INTERVALS.values()), "rows": float(rows)} | figures
    figures["small_rows"] = float(len(errors["small"]))
    figures["small_interval"] = SMALL_INTERVAL
    figures["small_error_p90"] = float(np.quantile(np.abs(errors["small"]), 0.9))
    figures["small_error_max"] = float(np.abs(errors["small"]).max())
    return Outcome({}, figures | _shares(fit(rows_with_interval())))


def held_out_errors() -> dict[str, list[float]]:
    """Return given / predicted speed - 1 of every row while it is held out, by kind."""
    every = rows_with_interval()
    errors: dict[str, list[float]] = {"timed": [], "untimed": [], "shared": [], "small": []}
    alone = [one for one in every if one.gpus == 1]
    for gpu in dict.fromkeys(one.gpu.name for one in alone):
        rows = [one for one in alone if one.gpu.name == gpu]
        without = fit([one for one in every if one.gpu.name != gpu])
        errors["untimed"] += _errors(without, rows)
        if len({one.model.name for one in rows}) == 1:
            timed = min(rows, key=lambda one: (abs(one.concurrency - TIMED_CONCURRENCY), one.context))
            speed = without.ms_per_token(timed) / timed.ms_per_token
            errors["timed"] += _errors(Fit(without.engine, {gpu: speed}), [one for one in rows if one is not timed])
    for gpu, model, shared in dict.fromkeys((one.gpu.name, one.model.name, one.gpus > 1) for one in every):
        rows = [one for one in every if (one.gpu.name, one.model.name, one.gpus > 1) == (gpu, model, shared)]
        others = [one for one in every if (one.gpu.name, one.model.name) != (gpu, model)]
        if shared or any(one.gpu.name == gpu and one.gpus == 1 for one in others):
            errors["shared" if shared else "timed"] += _errors(fit(others), rows)
    errors["small"] = _errors(fit(every), [one for one in measured_decodes() if one.model.parameters < SMALLEST_MODEL])
    return errors


def fit(rows: Sequence[TimedDecode]) -> Fit:
    """Fit an engine and each GPU type's speed by least squares of the logarithm, outliers damped.

    A GPU's speed is kept near 1 by counting as one more row, so that one with few rows does not take up their errors.
    """
    names = list(dict.fromkeys(one.gpu.name for one in rows))

    def of(values: Sequence[float]) -> Fit:
        return Fit(_engine(values[:9]), dict(zip(names, values[9:], strict=True)))

    def residuals(values: Sequence[float]) -> list[float]:
        found = of(values)
        logarithms = [float(np.log(found.ms_per_token(one) / one.ms_per_token)) for one in rows]
        return logarithms + [float(np.log(speed)) for speed in values[9:]]

    start = [0.8, 0.7, 0.6, 0.03, 0.005, 0.15, 0.1, 3.0, 30.0, *[1.0] * len(names)]
    low = [0.3, 0.2, 0.2, 0.0, 0.0, 0.0, 0.0, 0.5, 5.0, *[0.4] * len(names)]
    high = [1.0, 1.0, COMPUTE_SHARE_MAX, 0.3, 0.2, 1.0, 1.0, 50.0, 500.0, *[2.0] * len(names)]
    return of(least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER).x)


def _engine(values: Sequence[float]) -> Engine:
    weights, cache, compute, layer_ms, rollout_ms, pcie_ms, nvlink_ms, pcie_gb, nvlink_gb = map(float, values)
    exchange_s = dict(zip(LINKS, (pcie_ms / 1e3, nvlink_ms / 1e3), strict=True))
    rates = dict(zip(LINKS, (pcie_gb * 1e9, nvlink_gb * 1e9), strict=True))
    return Engine(weights, cache, compute, layer_ms / 1e3, rollout_ms / 1e3, exchange_s, rates)


def rows_with_interval() -> list[TimedDecode]:
    """Return the rows of models that are large enough for an interval."""
    return [one for one in (*modelled_decodes(), *measured_decodes()) if one.model.parameters >= SMALLEST_MODEL]


def _errors(found: Fit, rows: Iterable[TimedDecode]) -> list[float]:
    return [one.ms_per_token / found.ms_per_token(one) - 1.0 for one in rows]


def _shares(found: Fit) -> dict[str, float]:
    """Return the engine that all rows give, beside which stands the one that plans use."""
    figures = {"gpu_speed_median": median(found.speeds.values())}
    for name, engine in (("fitted", found.engine), ("used", VLLM)):
        figures[f"{name}_weights_share"] = engine.weights_share
        figures[f"{name}_cache_share"] = engine.cache_share
        figures[f"{name}_compute_share"] = engine.compute_share
        figures[f"{name}_layer_ms"] = engine.layer_s * 1e3
        figures[f"{name}_rollout_ms"] = engine.rollout_s * 1e3
        for link in LINKS:
            figures[f"{name}_exchange_ms_{link}"] = engine.exchange_s[link] * 1e3
            figures[f"{name}_exchange_gb_s_{link}"] = engine.exchange_bytes_per_second[link] / 1e9
    return figures
