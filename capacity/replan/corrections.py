"""Correct the model's rates and times by factors of measured over predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capacity.model.demand import Demand
from capacity.model.workers import Speed, Worker

_SHARE = 0.3  # weight of a new measurement in a factor
_LEAST, _MOST = 0.25, 4.0  # bounds of a factor: beyond them the cause is not the model's error
_FADES = 0.05  # share of a factor's distance from 1 that each interval without a measurement removes


@dataclass(frozen=True, slots=True)
class Corrections:
    """Factors on the model's figures; 1 where the model is right.

    Args:
        rate: factor on every worker's mu.
        t_bcast: factor on the bytes of a version.
        t_train: factor on the time of a learner step.
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
        """Return the corrections after measuring a rate.

        If something other than the workers limited the rate, the measurement is only a lower bound of theirs: the
        factor rises at most to it, and otherwise fades towards 1, because an earlier slowdown may be over.

        Args:
            measured: rollouts a second of the current set.
            predicted: the uncorrected model's rate for the same set.
            workers_limit: whether every worker was busy while the learner waited.
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
        """Return the corrections after the learner waited for busy workers, which therefore make less than ``needed``.

        ``predicted`` is the uncorrected model's rate for the same set, in rollouts a second.
        """
        if predicted <= 0.0:
            return self
        return replace(self, rate=_within(min(self.rate, needed / predicted)))

    def with_t_bcast(self, measured_s: float, predicted_s: float) -> Corrections:
        """Return the corrections after measuring T_bcast; ``predicted_s`` is the uncorrected bound."""
        if predicted_s <= 0.0:
            return replace(self, overhead_s=self.overhead_s + _SHARE * (measured_s - self.overhead_s))
        factor = _within(self.t_bcast + _SHARE * (measured_s / predicted_s - self.t_bcast))
        left_s = max(0.0, measured_s - factor * predicted_s) if factor >= _MOST else 0.0
        return replace(self, t_bcast=factor, overhead_s=self.overhead_s + _SHARE * (left_s - self.overhead_s))

    def with_t_train(self, measured_s: float, declared_s: float) -> Corrections:
        """Return the corrections after measuring T_train; ``declared_s`` is that of the uncorrected demand."""
        return replace(self, t_train=_within(self.t_train + _SHARE * (measured_s / declared_s - self.t_train)))


def _within(factor: float) -> float:
    return min(_MOST, max(_LEAST, factor))
