"""Between the capacity model in the core and the fleet: what is offered goes in, what is wanted comes out.

The model sees a worker that is not here as one that is off. When it joins, its peer takes its place, at its price. What
it switches off is drained and stopped; what fails to start is taken from the offers for a while, so that others are
chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from capacity.model.workers import Worker
from capacity.providers.base import Offer
from coordinator.core.events.actions import WantWorker
from coordinator.core.events.events import WorkersOffered
from rollcast.wire.ids import PeerId

FIRST = "somebody must work before anything can be measured"
RAN_BEFORE = "it ran before this coordinator started"


class WantedWorkers:
    """``reasons``: the wanted workers by id."""

    def __init__(self, running: Iterable[str]) -> None:
        """``running``: workers that an earlier coordinator left."""
        self.reasons: dict[str, str] = dict.fromkeys(running, RAN_BEFORE)
        self._told: WorkersOffered | None = None

    def take(self, action: WantWorker) -> None:
        """The model's decision."""
        if action.wanted:
            self.reasons[action.worker_id] = action.reason
        else:
            self.reasons.pop(action.worker_id, None)

    def look(
        self,
        offers: Iterable[Offer],
        *,
        begun: frozenset[str],
        failing: frozenset[str],
        here: Mapping[PeerId, str],
        nobody_works: bool,
    ) -> WorkersOffered | None:
        """What the core must be told now; None: nothing new.

        Args:
            begun: workers with a tag that is not over.
            failing: workers that are left alone for a while.
            here: worker ids of the peers that have a session and come from providers.
            nobody_works: no peer is here, so that the model has nothing to go by.
        """
        workers = {offer.worker.worker_id: offer.worker for offer in offers}
        for worker_id in [one for one in self.reasons if one not in workers or (one in failing and one not in begun)]:
            del self.reasons[worker_id]
        if nobody_works and not self.reasons:
            self._want_first(one for one in workers.values() if one.worker_id not in failing)
        backed = {peer_id: workers[worker_id] for peer_id, worker_id in here.items() if worker_id in workers}
        joined = {worker.worker_id for worker in backed.values()}
        absent = tuple(
            replace(worker, active=worker.worker_id in self.reasons)
            for worker in workers.values()
            if worker.worker_id not in joined and worker.worker_id not in failing
        )
        found = WorkersOffered(absent, backed)
        if found == self._told:
            return None
        self._told = found
        return found

    def _want_first(self, workers: Iterable[Worker]) -> None:
        """The cheapest for what it says that it makes."""
        best = min(workers, key=_usd_per_rollout, default=None)
        if best is not None:
            self.reasons[best.worker_id] = FIRST


def _usd_per_rollout(worker: Worker) -> tuple[bool, float, str]:
    rate = max((speed.rollouts_per_second for speed in worker.speeds), default=0.0)
    return not rate, worker.usd_per_hour / rate if rate else worker.usd_per_hour, worker.worker_id
