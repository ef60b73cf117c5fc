"""Plan, predict what the run will make of the plan, and buy more where waits leave the learner idle.

The planner's rows count rates: they cannot see that groups wait for their last rollout, versions for their copies, and
the learner for a batch. The model of the fleet can (capacity/predict), and takes a fraction of a second. So its figures
are the plan's promise, and a plan whose mean utilisation falls short of ``UTILISATION_ENOUGH`` is made again with more
headroom.

A run is one sample of many: a preemption may fall into it, and a fleet that drains at every version may stay in step
or fall out of it. So several runs are sampled until two agree, and the utilisation promised is the lowest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean, median

from capacity.model.demand import Demand
from capacity.model.workers import Speed, Worker
from capacity.planner.planner import DEFAULTS, PlanOptions, plan
from capacity.planner.plans import Expected, Plan
from capacity.predict.prediction import Prediction, samples

UTILISATION_ENOUGH = 0.97
"""Predicted utilisation from which no more workers are bought: the last percents cost more than they give."""
_ROUNDS = 3  # plans made at most
_RAISE_MAX = 1.2  # factor on the headroom from one plan to the next
_WARM_UP_STEPS, _STEPS, _WORKERS_MAX = 20, 40, 24  # of a sampled run: about 0.2 s
_RUNS_MIN, _RUNS_MAX = 2, 6  # that are sampled
_AGREE = 0.005  # difference of utilisations, and of dropped shares, up to which two runs suffice


def promised(demand: Demand, workers: Sequence[Worker], options: PlanOptions = DEFAULTS) -> Plan:
    """Return the cheapest plan whose expected utilisation suffices, else the one that comes closest.

    Raises:
        ValueError: two workers have one id.
    """
    best = expecting(plan(demand, workers, options), demand.headroom)
    last = best
    for _ in range(_ROUNDS - 1):
        if last.expected is None or best.utilisation >= UTILISATION_ENOUGH:
            break
        factor = min(_RAISE_MAX, 1.0 / max(last.utilisation, 1.0 / _RAISE_MAX))
        more = replace(last.demand, headroom=last.demand.headroom * factor)
        last = expecting(plan(more, workers, replace(options, remedies=False)), demand.headroom)
        if last.feasible and last.utilisation > best.utilisation:
            best = last
    return best


def expecting(made: Plan, headroom_asked: float) -> Plan:
    """Return the plan with what its run is expected to do; an infeasible one is returned as it is."""
    workers_on = [(one.worker, one.speed) for one in made.chosen if one.speed is not None]
    if not workers_on:
        return made
    found = sampled_runs(made.demand, workers_on)
    expected = Expected(
        utilisation=min(one.utilisation for one in found),
        dropped_share=fmean(one.dropped_share for one in found),
        t_bcast_p95_s=median(one.t_bcast_p95_s for one in found),
        mean_age=fmean(one.mean_staleness for one in found),
        headroom_asked=headroom_asked,
    )
    return replace(made, expected=expected, utilisation=fmean(one.utilisation for one in found))


def sampled_runs(demand: Demand, workers_on: Sequence[tuple[Worker, Speed]]) -> list[Prediction]:
    """Return the figures of sampled runs: two that agree, else as many as one prediction may take."""
    runs = samples(
        demand,
        workers_on,
        demand.conduct,
        warm_up_steps=_WARM_UP_STEPS,
        steps=_STEPS,
        workers_max=_WORKERS_MAX,
    )
    found = list(islice(runs, _RUNS_MIN))
    first, second = found
    if max(abs(first.utilisation - second.utilisation), abs(first.dropped_share - second.dropped_share)) > _AGREE:
        found += islice(runs, _RUNS_MAX - _RUNS_MIN)
    return found
