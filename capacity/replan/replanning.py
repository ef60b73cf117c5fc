"""Decide when to plan again which workers are on, and which of them to switch then.

The programme itself is solved elsewhere (capacity.replan.deciding), because it may take a second: a `Solve` is
returned, and a `Solved` arrives later. Memoryless re-planning starts workers at every change of the prices; discounted
incumbents, a minimum dwell and gathered causes prevent that (docs/activation.md has the figures). A waiting learner
takes precedence: workers that are off are then started whatever their dwell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from capacity.model.demand import Conduct, Demand
from capacity.model.workers import Worker
from capacity.replan.corrections import Corrections
from capacity.replan.events import (
    Action,
    DemandSeen,
    Event,
    Measured,
    Problem,
    ReplanSettings,
    Solve,
    Solved,
    SolveFailed,
    Start,
    Starving,
    Stop,
    Tick,
    WorkerGone,
    WorkerSeen,
)
from capacity.replan.preemptions import Preemptions
from capacity.replan.reserve import with_reserve

_NEVER = float("inf")
_FIRST = "the first plan"
_STARVED_SHARE = 0.25  # share of the needed rate that is started at once while the learner waits
_DEMAND_CHANGE = 0.15  # relative change of T_train that is a cause; for the bytes of a version it is twice this


@dataclass(slots=True)
class _Known:
    """A worker, and the time at which the replanner last switched it on or off."""

    worker: Worker
    reason: str = ""
    changed_at: float = -_NEVER
    planned: Worker | None = None  # the worker's figures in the last plan
    stops_at: float = _NEVER  # the worker is replaced by one that is starting, and stops then
    stops_as: Stop | None = None

    @property
    def measured(self) -> bool:
        return bool(self.worker.speeds)

    @property
    def rate(self) -> float:
        """Return the useful rollouts a second at its best concurrency, uncorrected; 0 if it was not measured."""
        best = max((speed.rollouts_per_second for speed in self.worker.speeds), default=0.0)
        return best * (1.0 - self.worker.preemption_loss)


class Replanner:
    """A replanner that decides which workers are on; times come from one monotonic clock, in seconds."""

    def __init__(self, settings: ReplanSettings) -> None:
        self.settings = settings
        self.corrections = Corrections()
        self.plan: Solved | None = None
        self.failed = ""  # why the last problem was not solved, empty if it was
        self.preemptions = Preemptions()
        self.flips = 0  # workers that were switched on or off
        self._workers: dict[str, _Known] = {}
        self._demand: Demand | None = None
        self._planned_demand: Demand | None = None
        self._pending: Problem | None = None
        self._asked_at = -_NEVER
        self._due_at = _NEVER
        self._trigger = ""
        self._changed_at = -_NEVER  # last change of the set as a whole
        self._starved_at = -_NEVER
        self._number = 0
        self._stops_at = _NEVER  # the earliest of the workers that are replaced

    # ---------------------------------------------------------------- questions

    def worker(self, worker_id: str) -> Worker | None:
        """Return the worker as last seen, with ``active`` as decided."""
        known = self._workers.get(worker_id)
        return None if known is None else known.worker

    def reason(self, worker_id: str) -> str:
        """Return in words why the worker is on or off; empty before the first plan with it."""
        known = self._workers.get(worker_id)
        return "" if known is None else known.reason

    @property
    def next_at(self) -> float:
        """Return the time at which the next Tick has an effect; inf: none has."""
        if self._pending is not None:
            return min(self._asked_at + self.settings.solve_timeout_s, self._stops_at)
        return _NEVER if self._demand is None or not self._workers else min(self._due_at, self._stops_at)

    # ---------------------------------------------------------------- events

    def handle(self, event: Event, now: float) -> list[Action]:
        """Return the actions for this event, in order."""
        actions = self._stop_replaced(now)
        match event:
            case WorkerSeen(worker):
                actions += self._seen(worker, now)
            case WorkerGone():
                actions += self._gone(event, now)
            case DemandSeen(demand):
                self._demand_seen(demand, now)
            case Measured():
                self._measured(event, now)
            case Starving():
                actions += self._starving(now)
            case Solved():
                actions += self._solved(event, now)
            case SolveFailed(number, why):
                actions += self._solve_failed(number, why, now)
            case Tick():
                pass
            case _:
                assert_never(event)
        if self._pending is not None and now >= self._asked_at + self.settings.solve_timeout_s:
            actions += self._solve_failed(self._pending.number, "the planner did not answer in time", now)
        return actions + self._solve_if_due(now)

    def _seen(self, worker: Worker, now: float) -> list[Action]:
        known = self._workers.get(worker.worker_id)
        if known is None:
            known = self._workers[worker.worker_id] = _Known(worker)
            self.preemptions.came(worker, now)
            self._cause(f"{_name(worker)} joined", now)
        else:
            known.worker = replace(worker, active=known.worker.active)
            cause = self._change(known)
            if cause:
                self._cause(f"{_name(worker)} {cause}", now)
        if not worker.pin:
            return []
        return self._switch(worker.worker_id, worker.pin == "on", f"{worker.pin}: pinned by the operator", now)

    def _change(self, known: _Known) -> str:
        """Return in words how the worker differs from the last plan; empty: in nothing that is a cause."""
        worker, planned, settings = known.worker, known.planned, self.settings
        if planned is None:  # its arrival was a cause already, and that plan is still due
            return ""
        if worker.pin != planned.pin:
            return f"is pinned {worker.pin}" if worker.pin else "is no longer pinned"
        if _moved(worker.usd_per_hour, planned.usd_per_hour, settings.price_change):
            return f"costs {worker.usd_per_hour:g} $/h instead of {planned.usd_per_hour:g}"
        if _moved(known.rate, _Known(planned).rate, settings.speed_change):
            return "is faster than it was" if known.rate > _Known(planned).rate else "is slower than it was"
        links = (worker.upload_bytes_per_second, planned.upload_bytes_per_second)
        return "has a different uplink rate" if _moved(*links, 2.0 * settings.speed_change) else ""

    def _gone(self, event: WorkerGone, now: float) -> list[Action]:
        known = self._workers.pop(event.worker_id, None)
        if known is None:
            return []
        self.preemptions.gone(known.worker, now, preempted=event.preempted)
        if not known.worker.active:
            return []
        self._changed_at = now
        self._cause(f"{_name(known.worker)} left: {event.reason}", now)
        if any(one.worker.active for one in self._workers.values()):
            return []
        return self._start_best(self._needed(), now, "on: no other worker is left")

    def _demand_seen(self, demand: Demand, now: float) -> None:
        self._demand, planned = demand, self._planned_demand
        if planned is None:
            self._cause(_FIRST, now)
            return
        if demand.staleness_limit != planned.staleness_limit:
            self._cause(f"S is {demand.staleness_limit} instead of {planned.staleness_limit}", now)
        elif _moved(demand.t_train_s, planned.t_train_s, _DEMAND_CHANGE):
            self._cause(f"a step takes {demand.t_train_s:.3g} s instead of {planned.t_train_s:.3g}", now)
        elif _moved(demand.update_bytes, planned.update_bytes, 2.0 * _DEMAND_CHANGE):
            self._cause(f"a version has {demand.update_bytes:.3g} bytes instead of {planned.update_bytes:.3g}", now)
        elif _others(demand) != _others(planned):
            self._cause("the rules or the budget have changed", now)

    def _measured(self, event: Measured, now: float) -> None:
        """Correct the model; a measurement during which the set changed is discarded, since no one set made it."""
        demand, plan = self._demand, self.plan
        if demand is None or plan is None or now - self._changed_at < event.seconds:
            return
        predicted = sum(known.rate for known in self._workers.values() if known.worker.active)
        made = self.corrections
        corrections = made.with_rate(event.rollouts_per_s, predicted, workers_limit=event.workers_limit)
        if event.t_bcast_s is not None and not plan.infeasible:
            corrections = corrections.with_t_bcast(event.t_bcast_s, plan.t_bcast_s / made.t_bcast)
        if event.t_train_s is not None and demand.t_train_s > 0.0:
            corrections = corrections.with_t_train(event.t_train_s, demand.t_train_s)
        self.corrections = corrections
        if event.workers_limit:
            self._cause(f"workers generate {corrections.rate:.0%} of the predicted rate", now)

    def _starving(self, now: float) -> list[Action]:
        """Start more workers; at most once a learner step, and not in a new set's first, since a start takes time."""
        demand = self._demand
        step_s = 0.0 if demand is None else demand.t_train_s
        if now - max(self._starved_at, self._changed_at) < max(step_s, self.settings.gather_s):
            return []
        self._starved_at = now
        if demand is not None:  # without the correction the next plan would stop the workers that are started here
            predicted = sum(known.rate for known in self._workers.values() if known.worker.active)
            self.corrections = self.corrections.with_too_little(self._needed() / demand.headroom, predicted)
        self._cause("the learner waits for rollouts", now)
        return self._start_best(_STARVED_SHARE * self._needed(), now, "on: the learner waits for rollouts")

    # ---------------------------------------------------------------- problems and answers

    def _cause(self, trigger: str, now: float) -> None:
        if not self._trigger:
            self._trigger = trigger
        self._due_at = min(self._due_at, now + self.settings.gather_s)

    def _solve_if_due(self, now: float) -> list[Action]:
        if self._demand is None or self._pending is not None or now < self._due_at or not self._workers:
            return []
        known = [one for one in self._workers.values() if one.measured]
        if not known:  # all workers stay on until there are speeds to compare
            self._due_at = now + self.settings.interval_s
            return []
        self._number += 1
        self._planned_demand = self._demand
        recent = {one.worker.worker_id for one in known if now - one.changed_at < self.settings.stays_s}
        dwelling = tuple(one for one in recent if self._workers[one].worker.active)
        workers = tuple(self._corrected(one, one.worker.worker_id in dwelling, now) for one in known)
        self._pending = Problem(
            number=self._number,
            trigger=self._trigger or "the planning interval is over",
            demand=with_reserve(self._corrected_demand(), workers),
            workers=workers,
            settings=self.settings,
            dwelling=tuple(sorted(dwelling)),
            resting=tuple(sorted(recent.difference(dwelling))),
        )
        for one in known:
            one.planned = one.worker
        self._trigger, self._asked_at, self._due_at = "", now, now + self.settings.interval_s
        return [Solve(self._pending)]

    def _corrected_demand(self) -> Demand:
        """Return the corrected demand, its budget less the cost of active workers that were never measured."""
        assert self._demand is not None
        demand = self.corrections.demand(self._demand)
        if demand.usd_per_hour_max is None:
            return demand
        spent = sum(one.worker.usd_per_hour for one in self._workers.values() if not one.measured and one.worker.active)
        return replace(demand, usd_per_hour_max=max(0.0, demand.usd_per_hour_max - spent))

    def _corrected(self, known: _Known, dwells: bool, now: float) -> Worker:
        worker = self.preemptions.learned(self.corrections.worker(known.worker), now)
        return replace(worker, pin="on") if dwells and not worker.pin else worker

    def _solved(self, event: Solved, now: float) -> list[Action]:
        problem = self._pending
        if problem is None or event.number != problem.number:
            return []
        self._pending, self.plan, self.failed = None, event, ""
        for worker_id, reason in event.reasons:
            if (known := self._workers.get(worker_id)) is not None:
                known.reason = reason
        dark = frozenset(event.dark)
        off = {worker_id for worker_id, _ in event.turn_off}
        for known in self._workers.values():
            if known.worker.worker_id not in off:  # this plan keeps it
                known.stops_at, known.stops_as = _NEVER, None
        actions: list[Action] = []
        for worker_id, reason in event.turn_on:
            actions += self._switch(worker_id, True, reason, now)
        stops_at = self._overlaps_until(now)
        for worker_id, reason in event.turn_off:
            actions += self._stop(Stop(worker_id, reason, worker_id not in dark), stops_at, now)
        self._plan_when_dwells_end(problem, now)
        return actions

    def _overlaps_until(self, now: float) -> float:
        """Return when the workers that are starting generate: those that are stopped stay until then.

        With a limited budget they do not: both together could exceed it.
        """
        if self._demand is not None and self._demand.usd_per_hour_max is not None:
            return now
        started = (known.changed_at for known in self._workers.values() if known.worker.active)
        return max(now, max(started, default=now) + self.settings.start_s)

    def _stop(self, stop: Stop, stops_at: float, now: float) -> list[Action]:
        known = self._workers.get(stop.worker_id)
        if known is None or stops_at <= now:
            return self._switch(stop.worker_id, False, stop.reason, now, receives=stop.receives)
        if known.stops_as is None:  # an earlier plan replaced it already
            known.stops_at, known.stops_as = stops_at, stop
            self._stops_at = min(self._stops_at, stops_at)
        return []

    def _stop_replaced(self, now: float) -> list[Action]:
        """Stop the workers whose replacements have had time to start."""
        if now < self._stops_at:
            return []
        actions: list[Action] = []
        for known in self._workers.values():
            if known.stops_as is not None and known.stops_at <= now:
                stop, known.stops_as, known.stops_at = known.stops_as, None, _NEVER
                actions += self._switch(stop.worker_id, False, stop.reason, now, receives=stop.receives)
        self._stops_at = min((known.stops_at for known in self._workers.values()), default=_NEVER)
        return actions

    def _plan_when_dwells_end(self, problem: Problem, now: float) -> None:
        held = [one for worker_id in problem.dwelling if (one := self._workers.get(worker_id)) is not None]
        if held:
            ends_at = min(one.changed_at for one in held) + self.settings.stays_s
            self._due_at = min(self._due_at, max(now + self.settings.gather_s, ends_at))

    def _switch(self, worker_id: str, on: bool, reason: str, now: float, *, receives: bool = True) -> list[Action]:
        known = self._workers.get(worker_id)
        if known is None or known.worker.active is on or known.worker.pin == ("off" if on else "on"):
            return []
        if not on and now - known.changed_at < self.settings.stays_s and known.worker.pin != "off":
            return []  # the worker was started while the planner was solving
        known.worker, known.reason = replace(known.worker, active=on), reason
        known.changed_at = self._changed_at = now
        self.flips += 1
        return [Start(worker_id, reason) if on else Stop(worker_id, reason, receives)]

    def _solve_failed(self, number: int, why: str, now: float) -> list[Action]:
        if self._pending is None or number != self._pending.number:
            return []
        self._pending, self.failed = None, why
        self._cause("the planner failed", now + self.settings.interval_s)
        missing = self._needed() - sum(one.rate for one in self._workers.values() if one.worker.active)
        return self._start_best(missing, now, f"on: the workers that are on are too slow, and {why}")

    # ---------------------------------------------------------------- without the planner

    def _needed(self) -> float:
        """Return the needed rollouts a second, with headroom; 0 without a demand."""
        demand = self._demand
        return 0.0 if demand is None else demand.headroom * demand.rollouts_per_step / demand.t_train_s

    def _start_best(self, missing: float, now: float, reason: str) -> list[Action]:
        """Start workers until ``missing`` rollouts a second are added, those with the cheapest rollouts first."""
        off = [one for one in self._workers.values() if not one.worker.active and one.worker.pin != "off"]
        off.sort(key=lambda one: (one.worker.usd_per_hour / one.rate if one.rate else _NEVER, -one.rate))
        budget = None if self._demand is None else self._demand.usd_per_hour_max
        spent = sum(one.worker.usd_per_hour for one in self._workers.values() if one.worker.active)
        actions: list[Action] = []
        for known in off:
            if missing <= 0.0:
                break
            if budget is not None and spent + known.worker.usd_per_hour > budget:
                continue
            missing -= known.rate
            spent += known.worker.usd_per_hour
            actions += self._switch(known.worker.worker_id, True, reason, now)
        return actions


def _moved(now: float, before: float, share: float) -> bool:
    return abs(now - before) > share * max(abs(before), 1e-12)


def _others(demand: Demand) -> Demand:
    """Return the demand with its measured figures neutralised: they change constantly, which is no cause to plan."""
    return replace(demand, t_train_s=1.0, update_bytes=1.0, t_swap_s=0.0, t_load_s=0.0, t_score_s=0.0,
                   learner_upload_bytes_per_second=1.0, conduct=Conduct(), length_quantiles=())  # fmt: skip


def _name(worker: Worker) -> str:
    return worker.name or worker.worker_id
