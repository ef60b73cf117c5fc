"""Replay a record of arrivals, departures and prices to a policy: starts, dollars and the learner's utilisation.

The learner trains as long as rollouts are there. What the workers make beyond its pace becomes a stock, of at most the
prompt groups that the coordinator keeps open ahead (``lead_margin_steps``); a shortage uses it up before the learner
idles. A started worker is paid from its start on, and generates ``start_s`` later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.replan.deciding import decide
from capacity.replan.events import (
    Action,
    DemandSeen,
    Event,
    Problem,
    Solve,
    Solved,
    Start,
    Stop,
    Tick,
    WorkerGone,
    WorkerSeen,
)

PoolEvent = WorkerSeen | WorkerGone | DemandSeen


class Policy(Protocol):
    """What decides which workers are on: the replanner, or a simpler rule to compare it with."""

    @property
    def next_at(self) -> float:
        """Return the time at which the next Tick has an effect; inf: none has."""
        ...

    def handle(self, event: Event, now: float) -> list[Action]:
        """Return the actions for this event, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Switch:
    """One decision of a replay; ``at_s`` is in seconds since its start."""

    at_s: float
    worker_id: str
    on: bool
    reason: str


@dataclass(slots=True)
class Replayed:
    """Sums over a replay.

    Args:
        seconds: length of the replay, from the first demand on.
        starts: number of times that a worker was switched on.
        plans: number of problems that were solved.
        infeasible: number of problems for which no set was feasible.
        usd: cost of workers while they were on, starting included.
        fixed_usd: cost of the learner and its storage, which are paid whether it trains or waits.
        useful_s: seconds in which the learner trained.
        switches: every decision, in order of time.
    """

    seconds: float = 0.0
    starts: int = 0
    plans: int = 0
    infeasible: int = 0
    usd: float = 0.0
    fixed_usd: float = 0.0
    useful_s: float = 0.0
    switches: list[Switch] = field(default_factory=list)

    @property
    def starts_per_h(self) -> float:
        return self.starts * 3600.0 / self.seconds

    @property
    def utilisation(self) -> float:
        return self.useful_s / self.seconds

    @property
    def usd_per_useful_h(self) -> float:
        """Cost of workers, learner and storage for each hour that the learner trained."""
        return (self.usd + self.fixed_usd) * 3600.0 / self.useful_s


def best_rate(worker: Worker) -> float:
    """Return the rollouts a second of the worker's fastest setting."""
    return max(speed.rollouts_per_second for speed in worker.speeds)


class Replay:
    """Drive a policy through virtual time.

    Args:
        policy: decides which workers are on.
        start_s: seconds from a worker's start to its first rollouts, less those in which it receives what the demand's
            ``join_bytes`` says; all of them are paid for, and produce nothing.
        solve: function that solves a problem; the answer takes no virtual time.
        rate_of: the rollouts a second that a worker really generates, where its measured speeds are not exact.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        start_s: float,
        solve: Callable[[Problem], Solved] = decide,
        rate_of: Callable[[Worker], float] = best_rate,
    ) -> None:
        self.result = Replayed()
        self._policy = policy
        self._solve = solve
        self._rate_of = rate_of
        self._start_s = start_s
        self._now = 0.0
        self._ready_at: dict[str, float] = {}  # only workers that are on
        self._workers: dict[str, Worker] = {}
        self._stock = 0.0  # rollouts made ahead
        self._demand: Demand | None = None

    def run(self, events: Iterable[tuple[float, PoolEvent]], until_s: float) -> Replayed:
        """Run the events, in order of time in seconds; time counts from the first demand on."""
        for at_s, event in events:
            if at_s > until_s:
                break
            self._advance(at_s)
            self._tell(event)
        self._advance(until_s)
        return self.result

    def _advance(self, to_s: float) -> None:
        while self._policy.next_at <= to_s:
            self._pass(max(self._now, self._policy.next_at))
            self._tell(Tick())
        self._pass(to_s)

    def _tell(self, event: Event) -> None:
        if isinstance(event, DemandSeen):
            self._demand = event.demand
        elif isinstance(event, WorkerSeen):
            self._workers[event.worker.worker_id] = event.worker
        elif isinstance(event, WorkerGone):
            self._ready_at.pop(event.worker_id, None)
            self._workers.pop(event.worker_id, None)
        for action in self._policy.handle(event, self._now):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Solve(problem):
                solved = self._solve(problem)
                self.result.plans += 1
                self.result.infeasible += bool(solved.infeasible)
                self._tell(solved)
            case Start(worker_id, reason):
                self.result.starts += 1
                self._ready_at[worker_id] = self._now + self._start_s + self._joining_s(worker_id)
                self.result.switches.append(Switch(self._now, worker_id, True, reason))
            case Stop(worker_id, reason):
                self._ready_at.pop(worker_id, None)
                self.result.switches.append(Switch(self._now, worker_id, False, reason))

    def _joining_s(self, worker_id: str) -> float:
        assert self._demand is not None
        return self._demand.joining_s(self._workers[worker_id].download_bytes_per_second)

    def _pass(self, to_s: float) -> None:
        """Add up cost and training until ``to_s``, piece by piece between the moments at which workers become ready."""
        while self._now < to_s:
            soonest = min((at for at in self._ready_at.values() if at > self._now), default=to_s)
            step_s = min(soonest, to_s) - self._now
            self._add(step_s)
            self._now += step_s

    def _add(self, step_s: float) -> None:
        demand = self._demand
        if demand is None:
            return
        usd_per_hour = rate = 0.0
        for worker_id, ready_at in self._ready_at.items():
            worker = self._workers[worker_id]
            usd_per_hour += worker.usd_per_hour
            if ready_at <= self._now:
                rate += self._rate_of(worker)
        self.result.seconds += step_s
        self.result.usd += usd_per_hour * step_s / 3600.0
        self.result.fixed_usd += (demand.learner_usd_per_hour + demand.storage_usd_per_hour) * step_s / 3600.0
        self.result.useful_s += self._trained_s(demand, rate, step_s)

    def _trained_s(self, demand: Demand, rate: float, step_s: float) -> float:
        """Return the seconds of training that so many rollouts a second and the stock give within ``step_s``."""
        needed = demand.rollouts_per_step / demand.t_train_s
        made = self._stock + rate * step_s
        used = min(made, needed * step_s)
        self._stock = min(made - used, demand.conduct.lead_margin_steps * demand.rollouts_per_step)
        return used / needed
