"""Plan, predict what the run will make of the plan, and choose the slack that makes the whole bill least.

The planner's rows count rates: they cannot see that groups wait for their last rollout, versions for their copies, and
the learner for a batch. The model of the fleet can (capacity/predict), and takes a fraction of a second. So its figures
are the plan's promise. A learner that waits costs as much as one that trains, and often more than all workers. Two
kinds of slack make it wait less: headroom, a rate above the one needed, and a margin, steps of S that the rows leave
free so that faster workers are chosen. Plans are made with more and more of either, cheapest first; one whose bill for
a step would not be below the best bill even if the learner never waited ends the search.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from capacity.model.demand import Demand
from capacity.model.units import SECONDS_PER_HOUR
from capacity.model.workers import Speed, Worker
from capacity.planner.planner import DEFAULTS, PlanOptions, plan
from capacity.planner.plans import Expected, Plan, SlackTrial
from capacity.predict.prediction import predict
from capacity.questions.bill import bill_of

UTILISATION_ENOUGH = 0.97
"""Predicted utilisation that suffices where the learner has no price, so that its waiting cannot be weighed."""
WORTH_TRYING = 0.0025
"""Share of the bill that another slack must be able to save for it to be tried; predictions are no better."""
_FACTOR, _MARGIN_STEPS = 1.1, 0.5  # from one headroom to the next, and from one margin to the next
_PREDICTIONS = 6  # at most
_PLANS, _PLANS_OF_MANY, _MANY = 32, 6, 1000  # at most; of as many workers a plan takes half a second
_WARM_UP_STEPS, _STEPS, _DRAWS, _WORKERS_MAX = 20, 40, 2, 24  # of a prediction: about 0.5 s; runs differ by chance
_GROUPS_MAX = 64  # of a modelled batch: the time of a prediction grows with their square
_WORKERS_MIN = 4


def promised(
    demand: Demand,
    workers: Sequence[Worker],
    options: PlanOptions = DEFAULTS,
    *,
    headroom_least: float | None = None,
) -> Plan:
    """Return the plan whose whole bill for a learner step is least, of those that are tried.

    Args:
        headroom_least: least phi; None: the demand's.

    Raises:
        ValueError: two workers have one id.
    """
    return cheapest(promises(demand, workers, options, headroom_least=headroom_least))


def promises(
    demand: Demand,
    workers: Sequence[Worker],
    options: PlanOptions = DEFAULTS,
    *,
    headroom_least: float | None = None,
) -> list[Plan]:
    """Return the plans that are tried, each with the figures of all; or only an infeasible one.

    Arguments and errors are those of ``promised``.
    """
    least = replace(demand, headroom=headroom_least or demand.headroom)
    first = plan(least, workers, options)
    if not first.feasible:
        return [first]
    tried = _tried(first, least, workers, options)
    trials = tuple(trial_of(one) for one in tried)
    return [replace(one, expected=replace(one.expected, trials=trials)) for one in tried if one.expected is not None]


def cheapest(tried: Sequence[Plan]) -> Plan:
    """Return the plan of the least bill for a step; of an unpriced learner the one that keeps it busy enough.

    Where nothing was predicted, because no set is feasible, that is the first one.
    """
    known = [one for one in tried if one.expected is not None]
    if not known:
        return tried[0]
    if known[0].demand.learner_usd_per_hour <= 0:
        enough = [one for one in known if one.utilisation >= UTILISATION_ENOUGH]
        if not enough:
            return max(known, key=lambda one: one.utilisation)
        known = enough
    return min(known, key=lambda one: trial_of(one).usd_per_step)


def trial_of(made: Plan) -> SlackTrial:
    """Return what a plan's slack gives."""
    demand = made.demand
    bill = bill_of(demand, made.workers_usd_per_hour, made.egress_usd_per_hour, made.utilisation)
    return SlackTrial(
        demand.headroom,
        demand.margin_steps,
        len(made.chosen),
        made.utilisation,
        bill.usd_per_hour,
        bill.usd_per_step,
    )


def _tried(first: Plan, least: Demand, workers: Sequence[Worker], options: PlanOptions) -> list[Plan]:
    """Return plans with their predictions, those of the least bill for a learner that never waits first."""
    quick, plans_max = replace(options, remedies=False), _PLANS if len(workers) < _MANY else _PLANS_OF_MANY
    places = [(0, 0)]  # how many factors on the headroom and steps of margin each plan has
    queue = [(_usd_at_best(first), 0, first)]
    known: set[tuple[tuple[str, Speed | None], ...]] = set()  # sets, which plans with other slack may share
    tried: list[Plan] = []
    while queue and len(known) < _PREDICTIONS:
        usd, number, made = heapq.heappop(queue)
        if tried and not _can_beat(usd, cheapest(tried)):
            break
        key = tuple((one.worker.worker_id, one.speed) for one in made.chosen)
        if key not in known:
            known.add(key)
            tried.append(expecting(made))
        raised, margins = places[number]
        for place in ((raised + 1, margins), (raised, margins + 1)):
            if place in places or len(places) >= plans_max or not _can_beat(usd, cheapest(tried)):
                continue
            places.append(place)
            more = plan(_with_slack(least, *place), workers, quick)
            if more.feasible:
                heapq.heappush(queue, (_usd_at_best(more), len(places) - 1, more))
    return tried


def _with_slack(least: Demand, factors: int, margins: int) -> Demand:
    return replace(least, headroom=least.headroom * _FACTOR**factors, margin_steps=_MARGIN_STEPS * margins)


def _usd_at_best(made: Plan) -> float:
    """Return USD/h of the whole bill if the learner never waited."""
    return bill_of(made.demand, made.workers_usd_per_hour, made.egress_usd_per_hour, 1.0).usd_per_hour


def _can_beat(usd_at_best: float, best: Plan) -> bool:
    """Return whether a plan that costs so much while the learner never waits could be the better one."""
    if best.demand.learner_usd_per_hour <= 0:
        return best.utilisation < UTILISATION_ENOUGH
    found = trial_of(best)
    return usd_at_best < found.usd_per_step * SECONDS_PER_HOUR / best.demand.t_train_s * (1.0 - WORTH_TRYING)


def expecting(made: Plan) -> Plan:
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
        workers_max=_workers_max(made.demand, len(workers_on)),
    )
    expected = Expected(found.utilisation, found.dropped_share, found.t_bcast_p95_s, found.mean_staleness)
    return replace(made, expected=expected, utilisation=found.utilisation)


def _workers_max(demand: Demand, workers: int) -> int:
    """Return how many workers are modelled one by one: so few that the batch with their share has few groups."""
    groups = demand.rollouts_per_step / demand.conduct.samples_per_group
    return min(_WORKERS_MAX, max(_WORKERS_MIN, round(workers * _GROUPS_MAX / groups)))
