"""Provide the simple rules that re-planning is compared with: on-demand machines, cheapest first, and 1.5 times spot.

They see what the replanner sees, at the same moments: prices, measured speeds, arrivals and departures.
"""

from __future__ import annotations

from collections.abc import Iterable

from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.replan.events import Action, DemandSeen, Event, Start, Stop, WorkerGone, WorkerSeen
from capacity.replan.replaying import best_rate

_NEVER = float("inf")
_GATHER_S = 2.0  # seconds within which changes are gathered, as the replanner gathers them


class Baseline:
    """Decides anew ``_GATHER_S`` after a change. Subclasses choose the set.

    Args:
        start_s: seconds from a worker's start to its first rollouts.
        headroom: rate bought / rate needed; None: the demand's.
    """

    def __init__(self, start_s: float, headroom: float | None = None) -> None:
        self.start_s = start_s
        self._headroom = headroom
        self._demand: Demand | None = None
        self.workers: dict[str, Worker] = {}
        self.on: dict[str, float] = {}  # time at which each worker that is on makes rollouts
        self.due_at = _NEVER

    @property
    def next_at(self) -> float:
        return self.due_at

    @property
    def target(self) -> float:
        """Return the rollouts a second to buy."""
        demand = self._demand
        if demand is None:
            return 0.0
        return (self._headroom or demand.headroom) * demand.rollouts_per_step / demand.t_train_s

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take over the event; decide if that is due."""
        match event:
            case DemandSeen(demand):
                self._demand = demand
            case WorkerSeen(worker):
                self.workers[worker.worker_id] = worker
            case WorkerGone(worker_id):
                self.workers.pop(worker_id, None)
                self.on.pop(worker_id, None)
            case _:
                return self._decided(now) if now >= self.due_at else []
        self.due_at = min(self.due_at, now + _GATHER_S)
        return []

    def chosen(self, now: float) -> set[str]:
        """Return the ids of the workers to have on."""
        raise NotImplementedError

    def rate(self, ids: Iterable[str]) -> float:
        """Return the rollouts a second of these workers, as measured."""
        return sum(best_rate(self.workers[worker_id]) for worker_id in ids)

    def cheapest(self, ids: Iterable[str]) -> list[str]:
        """Return the ids by the price of a rollout, the cheapest first."""
        return sorted(ids, key=lambda one: (self.workers[one].usd_per_hour / best_rate(self.workers[one]), one))

    def filled(self, chosen: set[str], candidates: Iterable[str]) -> set[str]:
        """Return the set with further workers, the cheapest first, until it reaches the target."""
        rate = self.rate(chosen)
        for worker_id in self.cheapest(candidates):
            if rate >= self.target:
                break
            if worker_id not in chosen:
                chosen.add(worker_id)
                rate += best_rate(self.workers[worker_id])
        return chosen

    def trimmed(self, chosen: set[str], candidates: Iterable[str]) -> set[str]:
        """Return the set without the workers that the target does not need, the dearest first."""
        rate = self.rate(chosen)
        for worker_id in reversed(self.cheapest(candidates)):
            less = rate - best_rate(self.workers[worker_id])
            if less >= self.target:
                chosen.discard(worker_id)
                rate = less
        return chosen

    def spot(self, ids: Iterable[str]) -> set[str]:
        """Return those of these workers that are spot machines."""
        return {worker_id for worker_id in ids if self.workers[worker_id].provider == "spot"}

    def _decided(self, now: float) -> list[Action]:
        self.due_at = _NEVER
        chosen = self.chosen(now)
        stops = [Stop(worker_id, "off") for worker_id in self.on if worker_id not in chosen]
        starts = [Start(worker_id, "on") for worker_id in sorted(chosen) if worker_id not in self.on]
        self.on = {worker_id: self.on.get(worker_id, now + self.start_s) for worker_id in chosen}
        return [*stops, *starts]


class OnDemand(Baseline):
    """Rents machines that are never taken away, and no others."""

    def chosen(self, now: float) -> set[str]:
        return self.filled(set(self.on), self.workers.keys() - self.spot(self.workers))


class Sticky(Baseline):
    """Keeps what is on; buys the cheapest where the rate is short, and stops the dearest that it does not need."""

    def chosen(self, now: float) -> set[str]:
        return self.trimmed(self.filled(set(self.on), self.workers), list(self.on))


class Greedy(Baseline):
    """Chooses the cheapest workers anew at every change: planning without memory, where no link limits the set."""

    def chosen(self, now: float) -> set[str]:
        return self.filled(set(), self.workers)


class SpotOnly(Baseline):
    """Keeps what is on, and buys the cheapest spot machines up to its headroom."""

    def chosen(self, now: float) -> set[str]:
        return self.trimmed(self.filled(set(self.on), self.spot(self.workers)), list(self.on))


class Fallback(Baseline):
    """Keeps spot machines; rents on-demand machines for what spot does not give, until spot machines have started."""

    def chosen(self, now: float) -> set[str]:
        spot = self.filled(self.spot(self.on), self.spot(self.workers))
        spot = self.trimmed(spot, [one for one in spot if one in self.on])
        rented = set(self.on) - self.spot(self.on)
        starting = [at for one in spot if (at := self.on.get(one, now + self.start_s)) > now]
        if rented and starting:
            self.due_at = min(starting)
            return spot | rented
        return self.filled(spot, self.workers.keys() - self.spot(self.workers))
