"""Predict learner utilisation, T_bcast, mean staleness and wasted rollouts of a set of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from capacity.model.broadcast_bound import broadcast_seconds, stripe_factor
from capacity.model.demand import Conduct, Demand
from capacity.model.slot_times import fit_log_normal, log_normal_shape, mean_longest, mean_of_longest, mean_rest
from capacity.model.useful_rate import shape_for, swap_s
from capacity.model.workers import Speed, Worker
from capacity.predict.fleet_model import FleetModel
from capacity.predict.fleet_parts import Measured, ModelWorker, t_bcast_of

WARM_UP_STEPS, STEPS, DRAWS = 40, 80, 3
_OnWorker = tuple[Worker, Speed, float]  # seconds from an announcement until it has its copy
_WORKERS_MAX = 64  # larger fleets are sampled


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted figures of a run.

    Args:
        utilisation: share of the time in which the learner trains.
        t_bcast_s: median time from announcement to the last worker's verified copy.
        mean_staleness: mean age of trained rollouts, in learner steps; 0 where nothing is trained.
        dropped_share: share of all ended rollouts that were too old for a batch.
        t_bcast_p95_s: T_bcast that 95 % of versions do not exceed.
    """

    utilisation: float
    t_bcast_s: float
    mean_staleness: float
    dropped_share: float
    t_bcast_p95_s: float = 0.0


def predict(
    demand: Demand,
    workers_on: Sequence[tuple[Worker, Speed]],
    conduct: Conduct = Conduct(),  # noqa: B008
    *,
    warm_up_steps: int = WARM_UP_STEPS,
    steps: int = STEPS,
    draws: int = DRAWS,
    workers_max: int = _WORKERS_MAX,
) -> Prediction:
    """Predict the figures of a run with these workers, each at this speed.

    Args:
        warm_up_steps, steps: time that passes before anything is counted, and then, in learner steps without a wait.
        workers_max: beyond so many workers only a sample is modelled one by one.
        draws: number of samples of lengths and preemptions; each figure is the median over them.

    Raises:
        ValueError: there is no worker.
    """
    return ModelledRuns(demand, workers_on, conduct, workers_max=workers_max).predict(warm_up_steps, steps, draws)


class ModelledRuns:
    """Runs of one set of workers that can be continued: a short prediction first, and a longer one where it matters.

    Arguments and errors are those of ``predict``.
    """

    def __init__(
        self,
        demand: Demand,
        workers_on: Sequence[tuple[Worker, Speed]],
        conduct: Conduct = Conduct(),  # noqa: B008
        *,
        workers_max: int = _WORKERS_MAX,
    ) -> None:
        if not workers_on:
            raise ValueError("nothing can be predicted of a run without workers")
        copies_s = conduct.t_notice_s + _copies_s(demand, workers_on)
        fleet = [(worker, speed, float(copy_s)) for (worker, speed), copy_s in zip(workers_on, copies_s, strict=True)]
        self._demand, self._fleet = _sample(demand, fleet, conduct, workers_max)
        self._conduct, self._last_copy_s = conduct, float(copies_s.max())
        self._runs: list[_Run] = []  # one of each seed

    def predict(self, warm_up_steps: int, steps: int, draws: int) -> Prediction:
        """Predict from so many samples, each of which counts so many steps after a warm-up; runs are continued.

        Raises:
            ValueError: the runs have passed the warm-up, and counted other steps.
        """
        measured = [self._measured(seed, warm_up_steps, steps) for seed in range(draws)]
        found = [astuple(_figures(one, self._last_copy_s)) for one in measured]
        return Prediction(*(float(column) for column in np.median(np.array(found), axis=0)))

    def _measured(self, seed: int, warm_up_steps: int, steps: int) -> Measured:
        if seed == len(self._runs):
            workers = [_model_worker(at, *one, self._demand, self._conduct) for at, one in enumerate(self._fleet)]
            self._runs.append(_Run(FleetModel(self._demand, self._conduct, workers, seed)))
        return self._runs[seed].measured(warm_up_steps, steps)


class _Run:
    """One modelled run, and what it counted last."""

    def __init__(self, model: FleetModel) -> None:
        self._model, self._steps_passed = model, 0
        self._counted: tuple[tuple[int, int], Measured] | None = None

    def measured(self, warm_up_steps: int, steps: int) -> Measured:
        """Return the counts of so many steps after a warm-up."""
        if self._counted is not None and self._counted[0] == (warm_up_steps, steps):
            return self._counted[1]
        if warm_up_steps < self._steps_passed:
            raise ValueError(f"the run has passed step {self._steps_passed}, and cannot count from {warm_up_steps} on")
        found = self._model.measure(warm_up_steps - self._steps_passed, steps)
        self._steps_passed, self._counted = warm_up_steps + steps, ((warm_up_steps, steps), found)
        return found


def _copies_s(demand: Demand, workers_on: Sequence[tuple[Worker, Speed]]) -> NDArray[np.float64]:
    """Return when each worker has its copy, shape [workers]: by the fluid bound, or later with a slow downlink."""
    uploads = np.array([worker.upload_bytes_per_second * worker.relays for worker, _ in workers_on])
    downloads = np.array([worker.download_bytes_per_second for worker, _ in workers_on])
    source, size, topology = demand.learner_upload_bytes_per_second, demand.update_bytes, demand.topology
    together_s = broadcast_seconds(size, source, uploads, np.full_like(downloads, np.inf), topology)
    return np.maximum(together_s, stripe_factor(topology) * size / downloads)


def _figures(measured: Measured, last_copy_s: float) -> Prediction:
    """Return the figures of a sampled run; T_bcast is that of the last copy where no version reached every worker."""
    ended = measured.trained + measured.dropped
    t_bcast_s = t_bcast_of(measured) or last_copy_s
    return Prediction(
        utilisation=min(1.0, measured.train_s / measured.seconds) if measured.seconds > 0 else 0.0,
        t_bcast_s=t_bcast_s,
        mean_staleness=measured.age_steps / measured.trained if measured.trained else 0.0,
        dropped_share=measured.dropped / ended if ended else 0.0,
        t_bcast_p95_s=t_bcast_of(measured, 0.95) or t_bcast_s,
    )


def _sample(
    demand: Demand, fleet: list[_OnWorker], conduct: Conduct, workers_max: int
) -> tuple[Demand, list[_OnWorker]]:
    """Sample at most so many workers evenly by speed, with as large a share of each batch; the last copy stays last."""
    if len(fleet) <= workers_max:
        return demand, fleet
    ordered = sorted(fleet, key=lambda one: one[1].rollouts_per_second)
    places = np.linspace(0, len(ordered) - 1, workers_max).round().astype(int)
    kept = [ordered[place] for place in places]
    share = _rate(kept) / _rate(fleet)
    group = max(1, min(conduct.samples_per_group, demand.rollouts_per_step))
    rollouts = group * max(1, round(demand.rollouts_per_step * share / group))
    faster = rollouts / (demand.rollouts_per_step * share)  # a batch has whole groups only; the speeds compensate
    kept = [(worker, _faster(speed, faster), copy_s) for worker, speed, copy_s in kept]
    slowest = max(range(len(kept)), key=lambda place: kept[place][2])
    kept[slowest] = (*kept[slowest][:2], max(copy_s for _, _, copy_s in fleet))
    return replace(demand, rollouts_per_step=rollouts), kept


def _rate(fleet: list[_OnWorker]) -> float:
    return sum(speed.rollouts_per_second * (1.0 - worker.preemption_loss) for worker, speed, _ in fleet)


def _faster(speed: Speed, factor: float) -> Speed:
    return replace(
        speed, rollouts_per_second=speed.rollouts_per_second * factor, t_gen_p90_s=speed.t_gen_p90_s / factor
    )


def _model_worker(
    number: int, worker: Worker, speed: Speed, copy_s: float, demand: Demand, conduct: Conduct
) -> ModelWorker:
    longest_of = speed.concurrency if conduct.whole_batches else 1
    mean_s = speed.concurrency / speed.rollouts_per_second
    median_s, sigma = fit_log_normal(mean_s, speed.t_gen_p90_s, longest_of)
    shape, slot_s = log_normal_shape(sigma), median_s * mean_of_longest(sigma, 1)
    if demand.length_quantiles:
        shape = shape_for(demand, speed)
        slot_s = mean_s / (mean_longest(shape, longest_of) if longest_of > 1 else 1.0)
    lives_s = 3600.0 / worker.preemptions_per_hour if worker.preemptions_per_hour > 0 else None
    away_s = max(0.0, worker.lost_per_preemption_s - median_s * mean_rest(sigma, longest_of))
    return ModelWorker(
        number, speed.concurrency, slot_s, shape, copy_s, swap_s(demand, speed), lives_s=lives_s, away_s=away_s
    )
