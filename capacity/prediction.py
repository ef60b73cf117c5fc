"""What a set of workers will make of a run: learner utilisation, T_bcast, mean staleness, rollouts in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capacity.broadcast_bound import broadcast_seconds, stripe_factor
from capacity.conduct import Conduct
from capacity.demand import Demand
from capacity.fleet_model import FleetModel, t_bcast_of
from capacity.fleet_model_parts import ModelWorker
from capacity.slot_times import fit_log_normal, mean_rest
from capacity.workers import Speed, Worker

WARM_UP_STEPS, STEPS = 40, 80


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
    *,
    warm_up_steps: int = WARM_UP_STEPS,
    steps: int = STEPS,
) -> Prediction:
    """What these workers give, each at this speed."""
    uploads = np.array([worker.upload_bytes_per_second * worker.relays for worker, _ in workers_on])
    downloads = np.array([worker.download_bytes_per_second for worker, _ in workers_on])
    source, size, topology = demand.learner_upload_bytes_per_second, demand.update_bytes, demand.topology
    together_s = broadcast_seconds(size, source, uploads, np.full_like(downloads, np.inf), topology)
    copies_s = np.maximum(together_s, stripe_factor(topology) * size / downloads)
    workers = [
        _model_worker(number, worker, speed, float(copy_s), conduct)
        for number, ((worker, speed), copy_s) in enumerate(zip(workers_on, copies_s, strict=True))
    ]
    measured = FleetModel(demand, conduct, workers).measure(warm_up_steps, steps)
    ended = measured.trained + measured.dropped
    return Prediction(
        utilisation=min(1.0, measured.train_s / measured.seconds),
        t_bcast_s=t_bcast_of(measured) or float(copies_s.max()),
        mean_staleness=measured.age_steps / measured.trained if measured.trained else 0.0,
        dropped_share=measured.dropped / ended if ended else 0.0,
    )


def _model_worker(number: int, worker: Worker, speed: Speed, copy_s: float, conduct: Conduct) -> ModelWorker:
    longest_of = speed.concurrency if conduct.whole_batches else 1
    mean_s = speed.concurrency / speed.rollouts_per_second
    median_s, sigma = fit_log_normal(mean_s, speed.t_gen_p90_s, longest_of)
    lives_s = 3600.0 / worker.preemptions_per_hour if worker.preemptions_per_hour > 0 else None
    away_s = max(0.0, worker.lost_per_preemption_s - median_s * mean_rest(sigma, longest_of))
    return ModelWorker(number, speed.concurrency, median_s, sigma, copy_s, lives_s=lives_s, away_s=away_s)
