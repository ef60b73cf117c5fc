"""Plan, predict what the run will make of the plan, and choose the slack that makes the whole bill least.

The planner's rows count rates: they cannot see that groups wait for their last rollout, versions for their copies, and
the learner for a batch. The model of the fleet can (capacity/predict), and takes a fraction of a second. So its figures
are the plan's promise. A learner that waits costs as much as one that trains, and often more than all workers. Two
kinds of slack make it wait less: headroom, a rate above the one needed, and a margin, steps of S that the rows leave
free so that faster workers are chosen. Plans are made with more and more of either, cheapest first; one whose bill for
a step would not be below the best bill even if the learner never waited ends the search.

The search is cheap where it can be: plans are compared by a short run of one sample, and of a large pool are made of
the workers near the first plan. The best of them is then planned and predicted in full; so is the next best, until the
best one by its full figures is at least as good as all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capacity.model.demand import Demand
from capacity.model.units import SECONDS_PER_HOUR
from capacity.model.workers import Speed, Worker
from capacity.planner.columns import Columns, Ints, columns_of
from capacity.planner.planner import DEFAULTS, PlanOptions, plan_over
from capacity.planner.plans import Candidate, Expected, Plan, SlackTrial
from capacity.predict.prediction import ModelledRuns
from capacity.questions.bill import bill_of

UTILISATION_ENOUGH = 0.97
"""Predicted utilisation that suffices where the learner has no price, so that its waiting cannot be weighed."""
WORTH_TRYING = 0.0025
"""Share of the bill that another slack must be able to save for it to be tried; predictions are no better."""
_FACTOR, _MARGIN_STEPS = 1.1, 0.5  # from one headroom to the next, and from one margin to the next
_PREDICTIONS = 6  # plans that are compared, at most
_PLANS, _PLANS_OF_MANY, _MANY = 32, 6, 1000  # at most; plans of more workers than many take longer
_NEAR_MIN, _NEAR_SETS = 500, 4  # workers of a large pool among which plans with slack choose: at least, and in sets
_WORKERS_MAX = 24  # of a prediction
_GROUPS_MAX = 64  # of a modelled batch
_WORKERS_MIN = 4
#: Steps of warm-up, learner steps that are counted, and samples of ever better predictions; runs differ by chance.
#: Pacing learns for 16 steps, so that a shorter warm-up misleads; caution settles later, and with it what is dropped.
_LENGTHS = ((20, 10, 1), (40, 40, 1), (40, 40, 2))
_NEVER_WAITS, _DROPS_LITTLE = 0.999, 0.005
"""Utilisation and dropped share of the longer run at which a second sample says the same (docs/capacity-model.md)."""


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
    columns = columns_of(demand, workers)
    first = _first(demand, columns, options, headroom_least)
    if not first.feasible:
        return first
    tried = _search(first, columns, options)
    best = tried.best()
    best.plan = _of_whole_pool(best.plan, columns, options)
    return _with_trials(tried, best.plan)


def promises(
    demand: Demand,
    workers: Sequence[Worker],
    options: PlanOptions = DEFAULTS,
    *,
    headroom_least: float | None = None,
) -> list[Plan]:
    """Return the plans that are tried, each predicted in full and with the figures of all; or only an infeasible one.

    Arguments and errors are those of ``promised``.
    """
    columns = columns_of(demand, workers)
    first = _first(demand, columns, options, headroom_least)
    if not first.feasible:
        return [first]
    tried = _search(first, columns, options)
    for one in tried.outlooks:
        one.predict_in_full()
        one.plan = _of_whole_pool(one.plan, columns, options)
    return [_with_trials(tried, one) for one in tried.plans]


def _first(demand: Demand, columns: Columns, options: PlanOptions, headroom_least: float | None) -> Plan:
    """Return the plan with the least slack."""
    return plan_over(replace(demand, headroom=headroom_least or demand.headroom), columns, options)


def _of_whole_pool(made: Plan, columns: Columns, options: PlanOptions) -> Plan:
    """Plan over the whole pool with the slack of a plan of part of it; the same set keeps its prediction."""
    if len(made.candidates) == len(columns):
        return made
    whole = plan_over(made.demand, columns, replace(options, remedies=False))
    if not whole.feasible:
        return made
    if _set_of(whole) == _set_of(made):
        return replace(whole, expected=made.expected, utilisation=made.utilisation)
    outlook = _Outlook(whole)
    outlook.predict_in_full()
    return outlook.plan


def _with_trials(tried: _Tried, made: Plan) -> Plan:
    assert made.expected is not None
    trials = tuple(trial_of(one) for one in tried.plans)
    return replace(made, expected=replace(made.expected, trials=trials))


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


def expecting(made: Plan) -> Plan:
    """Return a plan, made by rates alone, with what is expected of its run; an infeasible plan as it is."""
    if not made.feasible:
        return made
    outlook = _Outlook(made)
    outlook.predict_in_full()
    return outlook.plan


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


_Set = frozenset[tuple[str, Speed | None]]


def _set_of(made: Plan) -> _Set:
    return frozenset((one.worker.worker_id, one.speed) for one in made.chosen)


class _Outlook:
    """A feasible plan with its prediction, short at first."""

    def __init__(self, made: Plan) -> None:
        workers_on = [(one.worker, one.speed) for one in made.chosen if one.speed is not None]
        self._runs = ModelledRuns(
            made.demand,
            workers_on,
            made.demand.conduct,
            workers_max=_workers_max(made.demand, len(workers_on)),
        )
        self.length = 0
        self.plan = self._expecting(made)

    def _expecting(self, made: Plan) -> Plan:
        found = self._runs.predict(*_LENGTHS[self.length])
        expected = Expected(found.utilisation, found.dropped_share, found.t_bcast_p95_s, found.mean_staleness)
        return replace(made, expected=expected, utilisation=found.utilisation)

    @property
    def full(self) -> bool:
        """Whether nothing is predicted better: a second sample is for runs that chance has wait or drop work."""
        expected = self.plan.expected
        assert expected is not None
        easy = expected.utilisation >= _NEVER_WAITS and expected.dropped_share <= _DROPS_LITTLE
        return self.length + 1 == len(_LENGTHS) or (self.length == 1 and easy)

    def lengthen(self) -> None:
        """Predict better."""
        self.length += 1
        self.plan = self._expecting(self.plan)

    def predict_in_full(self) -> None:
        while not self.full:
            self.lengthen()


class _Tried:
    """The plans that a search compares, with short predictions until one has to be known in full."""

    def __init__(self) -> None:
        self.outlooks: list[_Outlook] = []

    @property
    def plans(self) -> list[Plan]:
        return [one.plan for one in self.outlooks]

    def best(self) -> _Outlook:
        """Return the cheapest plan, which is predicted in full."""
        while True:
            best = cheapest(self.plans)
            found = next(one for one in self.outlooks if one.plan is best)
            if found.full:
                return found
            found.lengthen()

    def beaten_by(self, usd_at_best: float) -> bool:
        """Return whether a plan that costs so much while the learner never waits could be better than these."""
        if not self.outlooks or _can_beat(usd_at_best, cheapest(self.plans)):
            return True
        return _can_beat(usd_at_best, self.best().plan)


def _search(first: Plan, columns: Columns, options: PlanOptions) -> _Tried:
    """Try plans with more and more slack, those of the least bill for a learner that never waits first."""
    quick, few = replace(options, remedies=False), len(columns) < _MANY
    near = columns if few else columns.only(_near(first))
    least, tried = first.demand, _Tried()
    places = [(0, 0)]  # how many factors on the headroom and steps of margin each plan has
    queue = [(_usd_at_best(first), 0, first)]
    known: set[_Set] = set()  # which plans with other slack may share
    while queue and len(known) < _PREDICTIONS:
        usd, number, made = heapq.heappop(queue)
        if not tried.beaten_by(usd):
            break
        key = _set_of(made)
        if key not in known:
            known.add(key)
            tried.outlooks.append(_Outlook(made))
        raised, margins = places[number]
        for place in ((raised + 1, margins), (raised, margins + 1)):
            if place in places or len(places) >= (_PLANS if few else _PLANS_OF_MANY) or not tried.beaten_by(usd):
                continue
            places.append(place)
            more = plan_over(_with_slack(least, *place), near, quick)
            if more.feasible:
                heapq.heappush(queue, (_usd_at_best(more), len(places) - 1, more))
    return tried


def _near(first: Plan) -> Ints:
    """Return the places of the workers among which plans with more slack will choose.

    They are the plan's own, and those that cost least more. A worker that an operator pinned or that is on already is
    among them whatever it costs.
    """
    candidates = first.candidates
    ordered = sorted(
        (place for place, one in enumerate(candidates) if not one.barred),
        key=lambda place: _order_near(candidates[place]),
    )
    return np.array(ordered[: max(_NEAR_MIN, _NEAR_SETS * len(first.chosen))])


def _order_near(one: Candidate) -> tuple[bool, float]:
    on = one.chosen or bool(one.worker.pin) or one.worker.active
    return not on, one.reduced_usd_per_hour / max(one.useful_rollouts_per_second, 1e-9)


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


def _workers_max(demand: Demand, workers: int) -> int:
    """Return how many workers are modelled one by one: so few that the batch with their share has few groups."""
    groups = demand.rollouts_per_step / demand.conduct.samples_per_group
    return min(_WORKERS_MAX, max(_WORKERS_MIN, round(workers * _GROUPS_MAX / groups)))
