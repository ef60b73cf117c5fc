"""Forecast the cost and duration of a plan for so many learner steps, with its uncertainty.

Every declared uncertainty is sampled many times and propagated: a slower learner needs fewer rollouts a second;
slow workers make it wait; a late version makes rollouts too old, and the pipeline of S - kappa steps can only turn as
fast as one version and one rollout go through it. Preemptions are a Poisson number over the whole run. Waits that the
plan expects beside these lengthen every step alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from capacity.model.assumptions import Assumption
from capacity.model.units import SECONDS_PER_HOUR
from capacity.planner.columns import Floats
from capacity.planner.plans import Plan

DRAWS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Relative standard deviations of a plan's figures; each is sampled log-normally about its value."""

    t_train: float = 0.1
    speeds: float = 0.15
    links: float = 0.1
    version_bytes: float = 0.0
    prices: float = 0.0


#: Name of an assumption -> what of the run it is about. The least certain one of several counts.
_ABOUT = {
    "learner step, T_train": "t_train",
    "workers with measured speeds": "speeds",
    "workers with estimated speeds": "speeds",
    "engine's efficiency": "speeds",
    "rollout, mean": "speeds",
    "origin's uplink, U0": "links",
    "version as a delta, M": "version_bytes",
    "prices": "prices",
}


def uncertainty_of(assumptions: Iterable[Assumption]) -> Uncertainty:
    """Read the uncertainties from a plan's assumptions; figures that they do not name are certain."""
    found = dict.fromkeys(set(_ABOUT.values()), 0.0)
    for one in assumptions:
        about = _ABOUT.get(one.name)
        if about is not None:
            found[about] = max(found[about], one.relative_uncertainty)
    return Uncertainty(**found)


@dataclass(frozen=True, slots=True)
class Range:
    """Quantiles over all samples: one in ten is below ``p10``, one in ten above ``p90``."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast of a plan over so many learner steps.

    Args:
        workers_usd, egress_usd, learner_usd, coordinator_usd, storage_usd: components of ``usd``.
        utilisation: share of the time in which the learner trains.
        in_time, in_budget: share of the samples within the deadline and the budget; None without one.
    """

    steps: int
    hours: Range
    usd: Range
    workers_usd: Range
    egress_usd: Range
    learner_usd: Range
    coordinator_usd: Range
    storage_usd: Range
    utilisation: Range
    in_time: float | None
    in_budget: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a plan keeps a goal.

    Args:
        what: the figures in words.
        remedies: single changes after which the goal is kept, smallest first: ("deadline: 7 h -> 13.4 h"); empty if
            it is kept.
    """

    kept: bool
    what: str
    remedies: tuple[str, ...]


def forecast(
    plan: Plan,
    steps: int,
    uncertainty: Uncertainty,
    *,
    seed: int,
    deadline_hours: float | None = None,
    budget_usd: float | None = None,
    draws: int = DRAWS,
) -> Forecast:
    """Propagate the uncertainties through so many learner steps.

    Args:
        seed: the same one gives the same forecast.

    Raises:
        ValueError: the plan chooses no worker, or steps or draws is not positive.
    """
    if not plan.feasible or steps < 1 or draws < 1:
        raise ValueError("a forecast needs a feasible plan, and at least one step and draw")
    rng, demand = np.random.default_rng(seed), plan.demand
    t_train_s = demand.t_train_s * _sampled_factors(rng, uncertainty.t_train, draws)
    speed = _sampled_factors(rng, uncertainty.speeds, draws)
    size = _sampled_factors(rng, uncertainty.version_bytes, draws)
    t_bcast_s = plan.t_bcast_s * size / _sampled_factors(rng, uncertainty.links, draws)
    price = _sampled_factors(rng, uncertainty.prices, draws)
    kept = _kept(plan, steps * demand.t_train_s / SECONDS_PER_HOUR, rng, draws)
    step_s = _step_s(plan, t_train_s, t_bcast_s, speed * kept, speed)
    hours = steps * step_s / SECONDS_PER_HOUR
    egress = plan.egress_usd_per_hour * steps * demand.t_train_s / SECONDS_PER_HOUR * size
    parts = {
        "workers_usd": hours * plan.workers_usd_per_hour * price,
        "egress_usd": egress * price,
        "learner_usd": hours * demand.learner_usd_per_hour,
        "coordinator_usd": hours * demand.coordinator_usd_per_hour,
        "storage_usd": hours * demand.storage_usd_per_hour,
    }
    usd = np.sum(list(parts.values()), axis=0)
    return Forecast(
        steps=steps,
        hours=_range(hours),
        usd=_range(usd),
        utilisation=_range(t_train_s / step_s),
        in_time=None if deadline_hours is None else float(np.mean(hours <= deadline_hours)),
        in_budget=None if budget_usd is None else float(np.mean(usd <= budget_usd)),
        **{name: _range(part) for name, part in parts.items()},
    )


def _step_s(plan: Plan, t_train_s: Floats, t_bcast_s: Floats, rate: Floats, speed: Floats) -> Floats:
    """Return the wall time of a step: training, waiting for rollouts, or for young enough ones; shape [draws].

    Args:
        rate: made / planned rollouts a second; speed: the same of one rollout's tokens.
    """
    demand = plan.demand
    made = plan.rate_rollouts_per_second * rate
    filling_s = demand.rollouts_per_step / made
    if demand.pauses_while_receiving:
        filling_s = filling_s + t_bcast_s / demand.publish_every_steps
    through_s = t_bcast_s + plan.t_gen_p90_s / speed + demand.t_score_s + demand.t_load_s
    turning_s = through_s / (demand.staleness_limit - demand.publish_every_steps)
    longest: Floats = np.maximum(np.maximum(t_train_s, filling_s), turning_s)
    return longest * _waits(plan)


def _waits(plan: Plan) -> float:
    """Return the seconds of a step as predicted / by rates alone, at least 1."""
    if plan.expected is None or plan.utilisation <= 0:
        return 1.0
    by_rates = min(1.0, plan.rate_rollouts_per_second / plan.rate_needed_rollouts_per_second)
    return max(1.0, by_rates / plan.utilisation)


def _kept(plan: Plan, hours: float, rng: np.random.Generator, draws: int) -> Floats:
    """Return the share of the planned rate that the sampled preemptions leave, in place of the expected; shape [draws].

    The planned rate has the expected loss in it already.
    """
    useful = np.array([one.useful_rollouts_per_second for one in plan.chosen])
    expected = np.array([one.worker.preemptions_per_hour for one in plan.chosen]) * hours
    lost = np.array([one.worker.preemption_loss for one in plan.chosen])
    if not expected.any():
        return np.ones(draws)
    ratio = rng.poisson(expected.sum(), draws) / expected.sum()
    lost_share = float((useful / np.maximum(1e-9, 1.0 - lost)) @ lost / useful.sum())
    left: Floats = np.maximum(0.01, 1.0 - lost_share * (ratio - 1.0))
    return left


def _sampled_factors(rng: np.random.Generator, relative: float, draws: int) -> Floats:
    """Sample factors about 1, log-normal with that standard deviation of the logarithm; shape [draws]."""
    factors: Floats = np.exp(rng.standard_normal(draws) * np.log1p(relative))
    return factors


def _range(values: Floats) -> Range:
    p10, p50, p90 = np.quantile(values, [0.1, 0.5, 0.9])
    return Range(float(p10), float(p50), float(p90))
