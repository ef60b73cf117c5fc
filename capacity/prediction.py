"""What a set of workers will make of a run: learner utilisation, T_bcast, mean staleness, rollouts in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.conduct import Conduct
from capacity.demand import Demand
from capacity.workers import Speed, Worker

ETA = 1.06


@dataclass(frozen=True, slots=True)
class Prediction:
    """Args:
    utilisation: share of the time in which the learner trains.
    t_bcast_s: from announcement to the last worker's verified copy, median.
    mean_staleness: of trained rollouts, in learner steps; 0 where nothing is trained.
    dropped_share: of all rollouts that ended, those that were made in vain: too old for a batch.
    """

    utilisation: float
    t_bcast_s: float
    mean_staleness: float
    dropped_share: float


def predict(
    demand: Demand,
    workers_on: Sequence[tuple[Worker, Speed]],
    conduct: Conduct = Conduct(),  # noqa: B008
) -> Prediction:
    """What these workers give, each at this speed."""
    uploads = sum(worker.upload_bytes_per_second for worker, _ in workers_on if worker.relays)
    together = len(workers_on) * demand.update_bytes / (demand.learner_upload_bytes_per_second + uploads)
    slowest = max(demand.update_bytes / worker.download_bytes_per_second for worker, _ in workers_on)
    t_bcast_s = ETA * max(demand.update_bytes / demand.learner_upload_bytes_per_second, together, slowest)
    rate = sum(speed.rollouts_per_second * (1.0 - worker.preemption_loss) for worker, speed in workers_on)
    utilisation = min(1.0, rate * demand.t_train_s / demand.rollouts_per_step)
    t_gen_s = sum(speed.concurrency / speed.rollouts_per_second for _, speed in workers_on) / len(workers_on)
    staleness = demand.publish_every_steps + (t_bcast_s + t_gen_s) / demand.t_train_s
    return Prediction(utilisation, t_bcast_s, staleness, 0.0)
