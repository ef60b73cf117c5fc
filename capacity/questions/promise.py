"""Plan, predict what the run will make of the plan, and buy more where waits leave the learner idle.

The planner's rows count rates: they cannot see that groups wait for their last rollout, versions for their copies, and
the learner for a batch. The model of the fleet can (capacity/predict), and takes a fraction of a second. So its figures
are the plan's promise, and a plan whose promise falls short of ``UTILISATION_ENOUGH`` is made again with more headroom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner.planner import DEFAULTS, PlanOptions, plan
from capacity.planner.plans import Expected, Plan
from capacity.predict.prediction import predict

UTILISATION_ENOUGH = 0.97
"""Predicted utilisation from which no more workers are bought: the last percents cost more than they give."""
_ROUNDS = 3  # plans made at most
_RAISE_MAX = 1.2  # factor on the headroom from one plan to the next
_WARM_UP_STEPS, _STEPS, _DRAWS, _WORKERS_MAX = 20, 40, 2, 24  # of a prediction: about 0.5 s; runs differ by chance


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
    found = predict(
        made.demand,
        workers_on,
        made.demand.conduct,
        warm_up_steps=_WARM_UP_STEPS,
        steps=_STEPS,
        draws=_DRAWS,
        workers_max=_WORKERS_MAX,
    )
    expected = Expected(
        found.utilisation, found.dropped_share, found.t_bcast_p95_s, found.mean_staleness, headroom_asked
    )
    return replace(made, expected=expected, utilisation=found.utilisation)
