"""Connect the capacity model in the core with the fleet: pass offers to the model, and its choice to the fleet.

For the model a worker without a peer is switched off. When it joins, its peer takes its place, at its price. A worker
that the model switches off is drained and stopped. A worker that fails to start is left out of the offers for a while,
so that others are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from capacity.model.workers import Worker
from capacity.providers.base import Offer
from coordinator.core.events.actions import WantWorker
from coordinator.core.events.events import WorkersOffered
from rollcast.wire.ids import PeerId

FIRST = "the model has no measurements before a first worker runs"
RAN_BEFORE = "it ran before this coordinator started"


class WantedWorkers:
    """The wanted workers; ``reasons`` maps their ids to the reason."""

    def __init__(self, running: Iterable[str]) -> None:
        """``running``: workers that an earlier coordinator started."""
        self.reasons: dict[str, str] = dict.fromkeys(running, RAN_BEFORE)
        self._sent: WorkersOffered | None = None

    def take(self, action: WantWorker) -> None:
        """Apply a decision of the model."""
        if action.wanted:
            self.reasons[action.worker_id] = action.reason
        else:
            self.reasons.pop(action.worker_id, None)

    def update(
        self,
        offers: Iterable[Offer],
        *,
        begun: frozenset[str],
        failing: frozenset[str],
        here: Mapping[PeerId, str],
        no_peers: bool,
    ) -> WorkersOffered | None:
        """Return the offers to pass to the core; None if they have not changed.

        Args:
            begun: workers with a tag that is not over.
            failing: workers that are not started for a while.
            here: worker ids of the peers that have a session and come from providers.
            no_peers: whether no peer is connected, so that the model has no measurements.
        """
        workers = {offer.worker.worker_id: offer.worker for offer in offers}
        for worker_id in [one for one in self.reasons if one not in workers or (one in failing and one not in begun)]:
            del self.reasons[worker_id]
        if no_peers and not self.reasons:
            self._want_first(one for one in workers.values() if one.worker_id not in failing)
        backed = {peer_id: workers[worker_id] for peer_id, worker_id in here.items() if worker_id in workers}
        joined = {worker.worker_id for worker in backed.values()}
        absent = tuple(
            replace(worker, active=worker.worker_id in self.reasons)
            for worker in workers.values()
            if worker.worker_id not in joined and worker.worker_id not in failing
        )
        found = WorkersOffered(absent, backed)
        if found == self._sent:
            return None
        self._sent = found
        return found

    def _want_first(self, workers: Iterable[Worker]) -> None:
        """Want the worker with the cheapest rollouts by its expected speed."""
        best = min(workers, key=_usd_per_rollout, default=None)
        if best is not None:
            self.reasons[best.worker_id] = FIRST


def _usd_per_rollout(worker: Worker) -> tuple[bool, float, str]:
    rate = max((speed.rollouts_per_second for speed in worker.speeds), default=0.0)
    return not rate, worker.usd_per_hour / rate if rate else worker.usd_per_hour, worker.worker_id
