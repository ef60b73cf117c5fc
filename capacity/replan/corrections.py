"""Correct the model's rates and times by factors of measured over predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capacity.model.demand import Demand
from capacity.model.workers import Speed, Worker

_SHARE = 0.3  # of a new measurement in a factor
_LEAST, _MOST = 0.25, 4.0  # of a factor: beyond, something else is wrong than the model
_FADES = 0.05  # of a factor's distance from 1 that each interval without a measurement takes away


@dataclass(frozen=True, slots=True)
class Corrections:
    """Factors on the model's figures; 1 where the model is right.

    Args:
        rate: on every worker's mu.
        t_bcast: on the bytes of a version.
        t_train: on the learner's step.
        overhead_s: seconds of a broadcast that no factor explains; added to the loading time.
    """

    rate: float = 1.0
    t_bcast: float = 1.0
    t_train: float = 1.0
    overhead_s: float = 0.0

    def demand(self, demand: Demand) -> Demand:
        """Return the demand with the factors applied."""
        return replace(
            demand,
            t_train_s=demand.t_train_s * self.t_train,
            update_bytes=demand.update_bytes * self.t_bcast,
            t_load_s=demand.t_load_s + self.overhead_s,
        )

    def worker(self, worker: Worker) -> Worker:
        """Return the worker with corrected speeds; at a lower rate each rollout takes proportionally longer."""
        if self.rate == 1.0:
            return worker
        speeds = tuple(
            Speed(
                speed.concurrency,
                speed.rollouts_per_second * self.rate,
                speed.t_gen_p90_s / min(1.0, self.rate),
                speed.t_gen_mean_s / min(1.0, self.rate),
            )
            for speed in worker.speeds
        )
        return replace(worker, speeds=speeds)

    def with_rate(self, measured: float, predicted: float, *, workers_limit: bool) -> Corrections:
        """Return the corrections after measuring a rate; ``predicted``: the uncorrected model's, for the same set.

        Where the workers were not what limits, they can do at least what they did: the factor only rises to that, and
        otherwise fades, because what slowed them down may be over.
        """
        if predicted <= 0.0:
            return self
        ratio = _within(measured / predicted)
        if workers_limit:
            rate = self.rate + _SHARE * (ratio - self.rate)
        else:
            rate = max(self.rate, min(1.0, ratio))
            rate += _FADES * (1.0 - rate)
        return replace(self, rate=_within(rate))

    def with_too_little(self, needed: float, predicted: float) -> Corrections:
        """The learner waits for busy workers: they make less than is needed, whatever the uncorrected model says."""
        if predicted <= 0.0:
            return self
        return replace(self, rate=_within(min(self.rate, needed / predicted)))

    def with_t_bcast(self, measured_s: float, predicted_s: float) -> Corrections:
        """Return the corrections after measuring T_bcast; ``predicted_s``: by the uncorrected bound."""
        if predicted_s <= 0.0:
            return replace(self, overhead_s=self.overhead_s + _SHARE * (measured_s - self.overhead_s))
        factor = _within(self.t_bcast + _SHARE * (measured_s / predicted_s - self.t_bcast))
        left_s = max(0.0, measured_s - factor * predicted_s) if factor >= _MOST else 0.0
        return replace(self, t_bcast=factor, overhead_s=self.overhead_s + _SHARE * (left_s - self.overhead_s))

    def with_t_train(self, measured_s: float, declared_s: float) -> Corrections:
        """Return the corrections after measuring T_train; ``declared_s``: of the uncorrected demand."""
        return replace(self, t_train=_within(self.t_train + _SHARE * (measured_s / declared_s - self.t_train)))


def _within(factor: float) -> float:
    return min(_MOST, max(_LEAST, factor))
