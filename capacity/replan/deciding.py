"""Answer a re-planning problem: the planner's set, free workers in addition, and a fallback where no set is feasible.

Three rules go beyond the programme's own answer. Workers that cost nothing stay on as long as versions still arrive in
time. Workers that are off continue to receive versions where that is cheap. Where no set is feasible, every worker
within the budget is on, because an idle learner costs more than the workers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from capacity.model.broadcast_bound import broadcast_seconds
from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner.planner import PlanOptions, plan
from capacity.planner.plans import Candidate, Plan
from capacity.planner.programme import usd_per_hour_of_a_copy
from capacity.replan.events import Problem, Solved

REASONS_MAX = 512
"""Above this many workers only those that change are given reasons, which keeps the record small."""

Planner = Callable[[Demand, Sequence[Worker], PlanOptions], Plan]

#: Where S is too small, the set for an S that is this many steps larger is used, with the headroom below if such a set
#: exists: with S one or two steps short, 1.5 times the needed rate still keeps the learner busy (docs/capacity.md).
_STEPS_SHORT = (1, 2, 4)
_HEADROOM_WHERE_SHORT = 1.5
_NO_SET_HELPS = frozenset({"relay", "learner_uplink", "downlink"})  # limits that more receivers make worse


def decide(problem: Problem, planner: Planner = plan) -> Solved:
    """Solve a problem; this takes up to a second for 10,000 workers, and twice that where the current set may suffice.

    Raises:
        ValueError: a value of the demand or of a worker is out of its range.
    """
    made, kept = _made(problem, planner)
    reasons = {one.worker.worker_id: one.reason for one in made.candidates}
    if not made.feasible:
        short = _with_more_steps(problem, made, planner, reasons)
        return _solved(problem, made, short or _without_a_set(problem, made, reasons), reasons)
    chosen = {one.worker.worker_id for one in made.chosen}
    for worker_id in kept - chosen:
        reasons[worker_id] = "on: the workers that are on still suffice"
    chosen |= kept
    chosen |= _free(problem, made, chosen, reasons)
    return _solved(problem, made, chosen, reasons)


def _made(problem: Problem, planner: Planner) -> tuple[Plan, set[str]]:
    """Return the plan to follow, and the ids of active workers that stay on in addition.

    Workers stopped lately are left out if a set without them is feasible. If the full headroom requires a worker to
    start and the kept headroom does not, none starts: speeds are measured with noise, and the set would follow that.
    """
    settings, demand = problem.settings, problem.demand
    options = PlanOptions(settings.discount, settings.time_limit_s, remedies=False)
    resting = frozenset(problem.resting)
    workers = [replace(one, pin="off") if one.worker_id in resting and not one.pin else one for one in problem.workers]
    made = planner(demand, workers, options)
    if not made.feasible and resting:
        workers = list(problem.workers)
        made = planner(demand, workers, options)
    headroom = 1.0 + settings.headroom_kept * (demand.headroom - 1.0)
    if headroom >= demand.headroom or (made.feasible and not _starts(made)):
        return made, set()
    steady = planner(replace(demand, headroom=headroom), workers, options)
    if not steady.feasible:
        return made, set()
    if not made.feasible:
        return steady, set()
    if _starts(steady):
        return made, set()
    return steady, {one.worker.worker_id for one in made.chosen if one.worker.active}


def _with_more_steps(problem: Problem, made: Plan, planner: Planner, reasons: dict[str, str]) -> set[str]:
    """Return the ids of a set for a larger S where S is the reason that no set is feasible; else an empty set."""
    assert made.infeasible is not None
    if made.infeasible.binding == "budget":
        return set()
    demand, settings = problem.demand, problem.settings
    options = PlanOptions(settings.discount, settings.time_limit_s, remedies=False)
    for headroom in (max(_HEADROOM_WHERE_SHORT, demand.headroom), demand.headroom):
        for steps in _STEPS_SHORT:
            larger = replace(demand, headroom=headroom, staleness_limit=demand.staleness_limit + steps)
            found = planner(larger, problem.workers, options)
            if found.feasible:
                for one in found.candidates:
                    word, _, why = one.reason.partition(": ")
                    reasons[one.worker.worker_id] = f"{word}: S is too small by {steps}; for an S that suffices: {why}"
                return {one.worker.worker_id for one in found.chosen}
    return set()


def _starts(made: Plan) -> bool:
    return any(not one.worker.active for one in made.chosen)


def _free(problem: Problem, made: Plan, chosen: set[str], reasons: dict[str, str]) -> set[str]:
    """Return the ids of further workers that cost nothing and delay no version."""
    allowed_s = made.split.t_bcast_s
    idle = [
        one for one in made.candidates
        if one.worker.worker_id not in chosen
        and one.speed is not None
        and one.usd_per_hour == 0.0
        and one.worker.pin != "off"
        and one.worker.worker_id not in problem.resting
    ]  # fmt: skip
    on = [one.worker for one in made.candidates if one.worker.worker_id in chosen]
    added = _that_fit(problem.demand, on, [one.worker for one in idle], allowed_s)
    for one in idle:
        worker_id = one.worker.worker_id
        if worker_id in added:
            reasons[worker_id] = "on: it costs nothing, and versions still arrive in time"
        else:
            reasons[worker_id] = f"off: with it versions would take longer than the allowed {allowed_s:.3g} s"
    return added


def _that_fit(demand: Demand, on: list[Worker], more: list[Worker], allowed_s: float) -> set[str]:
    """Return the ids of as many of ``more`` as can receive besides ``on`` while T_bcast stays within ``allowed_s``."""
    ordered = sorted(more, key=lambda one: (-_upload(one), one.worker_id))
    ordered = [one for one in ordered if _seconds(demand, [one]) <= allowed_s]
    low, high = 0, len(ordered)  # bisection: T_bcast grows with the receivers, taken by descending uplink
    while low < high:
        middle = (low + high + 1) // 2
        if _seconds(demand, on + ordered[:middle]) <= allowed_s:
            low = middle
        else:
            high = middle - 1
    return {one.worker_id for one in ordered[:low]}


def _seconds(demand: Demand, receivers: list[Worker]) -> float:
    uploads = np.array([_upload(one) for one in receivers])
    downloads = np.array([one.download_bytes_per_second for one in receivers])
    return broadcast_seconds(
        demand.update_bytes, demand.learner_upload_bytes_per_second, uploads, downloads, demand.topology
    )


def _upload(worker: Worker) -> float:
    return worker.upload_bytes_per_second if worker.relays else 0.0


def _without_a_set(problem: Problem, made: Plan, reasons: dict[str, str]) -> set[str]:
    """Return the ids of workers to have on where no set is feasible.

    Active workers stay on, and if more workers help, all within the budget start, the cheapest for their rate first.
    """
    assert made.infeasible is not None
    budget = problem.demand.usd_per_hour_max
    helps = made.infeasible.binding not in _NO_SET_HELPS or not any(one.active for one in problem.workers)
    chosen: set[str] = set()
    spent = 0.0
    for one in sorted(made.candidates, key=_cheapest_first):
        worker, worker_id = one.worker, one.worker.worker_id
        affordable = budget is None or spent + worker.usd_per_hour <= budget
        wanted = worker.active or helps
        if worker.pin == "off" or not affordable or not wanted:
            reasons[worker_id] = "off: pinned by the operator" if worker.pin == "off" else (
                "off: the budget is spent" if not affordable else f"off: no set is feasible: {made.infeasible.what}"
            )  # fmt: skip
            continue
        chosen.add(worker_id)
        spent += worker.usd_per_hour
        reasons[worker_id] = f"on: the learner would idle more without it; no set is feasible: {made.infeasible.what}"
    return chosen


def _cheapest_first(one: Candidate) -> tuple[bool, bool, float, str]:
    """Return a worker's sort key: pinned ones first, then by price for their rate; of equals, active ones first."""
    worker = one.worker
    rate = max((speed.rollouts_per_second for speed in worker.speeds), default=0.0)
    price = worker.usd_per_hour / rate if rate else float("inf")
    return worker.pin != "on", not rate, price * (0.999 if worker.active else 1.0), worker.worker_id


def _solved(problem: Problem, made: Plan, chosen: set[str], reasons: dict[str, str]) -> Solved:
    workers, stays_s = problem.workers, problem.settings.stays_s
    for worker_id in chosen.intersection(problem.dwelling):
        reasons[worker_id] = f"on: it was started less than {stays_s:g} s ago"
    for worker_id in set(problem.resting) - chosen:
        reasons[worker_id] = f"off: it was stopped less than {stays_s:g} s ago and is not needed"
    turn_on = tuple(
        (one.worker_id, reasons[one.worker_id]) for one in workers if one.worker_id in chosen and not one.active
    )
    turn_off = tuple(
        (one.worker_id, reasons[one.worker_id]) for one in workers if one.worker_id not in chosen and one.active
    )
    changed = {worker_id for worker_id, _ in turn_on + turn_off}
    few = len(workers) <= REASONS_MAX
    off = [one for one in workers if one.worker_id not in chosen]
    on = [one for one in workers if one.worker_id in chosen]
    receives = _that_fit(problem.demand, on, [one for one in off if _is_cheap(problem, one)], _allowed_s(problem, made))
    infeasible = made.infeasible
    return Solved(
        number=problem.number,
        turn_on=turn_on,
        turn_off=turn_off,
        reasons=tuple((key, text) for key, text in reasons.items() if few and key not in changed),
        dark=tuple(one.worker_id for one in off if one.worker_id not in receives),
        on=len(on),
        off=len(off),
        usd_per_hour=made.usd_per_hour + sum(one.usd_per_hour for one in made.candidates if _beside(one, chosen)),
        lp_bound_usd_per_hour=made.lp_bound_usd_per_hour,
        rate_rollouts_per_second=_rate(made, chosen),
        rate_needed_rollouts_per_second=made.rate_needed_rollouts_per_second,
        t_bcast_s=_seconds(problem.demand, on),
        staleness_needed=made.staleness_needed,
        utilisation=made.utilisation,
        solve_s=made.solve_s,
        infeasible="" if infeasible is None else infeasible.what,
        remedies=() if infeasible is None else infeasible.remedies,
    )


def _beside(one: Candidate, chosen: set[str]) -> bool:
    return one.worker.worker_id in chosen and not one.chosen


def _rate(made: Plan, chosen: set[str]) -> float:
    return sum(one.useful_rollouts_per_second for one in made.candidates if one.worker.worker_id in chosen)


def _allowed_s(problem: Problem, made: Plan) -> float:
    return made.split.t_bcast_s if made.feasible else max(0.0, problem.demand.budget_s)


def _is_cheap(problem: Problem, worker: Worker) -> bool:
    """Whether sending the worker all versions, at the origin's egress price, costs a small share of its price."""
    demand = problem.demand
    usd_per_hour = usd_per_hour_of_a_copy(demand) * demand.learner_egress_usd_per_gb
    return usd_per_hour <= problem.settings.standby_usd_share * worker.usd_per_hour
