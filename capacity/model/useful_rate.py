"""Estimate what a worker's rollouts are worth to a run: the losses to new versions, and to groups that come too late.

With "finish" no slot is refilled once a newer version is loaded, until the last rollout in flight has ended. With
"continue" the engine reads the prompt and the tokens so far of every rollout in flight again, because their caches
belong to the old weights. With "keep" it continues with the caches that it has. All three pause for the swap itself.
docs/capacity-model.md derives the shares. A prompt group is as late as the longest of its rollouts.
"""

from __future__ import annotations

from functools import lru_cache

from capacity.model.demand import Demand
from capacity.model.slot_times import (
    fit_log_normal,
    log_normal_shape,
    longest_quantile,
    mean_longest,
    residual_shape,
    shape_of,
)
from capacity.model.workers import Speed

IN_TIME_SHARES = (0.9, 0.97, 1.0)
"""Shares of prompt groups in time among which each worker's concurrency is weighed: more drops or fewer at once."""


def options_of(demand: Demand, speed: Speed) -> list[tuple[float, float]]:
    """Return the rollouts/s that are trained and the seconds of a group, for each of IN_TIME_SHARES.

    Without groups and without the run's lengths the speed's own p90 stands for all: its tail is left to the gate.
    """
    rate = speed.rollouts_per_second * share_left_by_swaps(demand, speed)
    samples = demand.conduct.samples_per_group
    if samples == 1 and not demand.length_quantiles:
        return [(rate, speed.t_gen_p90_s)] * len(IN_TIME_SHARES)
    mean_s, shape = speed.concurrency / speed.rollouts_per_second, shape_for(demand, speed)
    return [(rate * share, mean_s * longest_quantile(shape, samples, share)) for share in IN_TIME_SHARES]


def shape_for(demand: Demand, speed: Speed) -> tuple[float, ...]:
    """Return the times of single rollouts in multiples of their mean: the run's lengths, else fitted to the speed."""
    if demand.length_quantiles:
        return _shape(demand.length_quantiles)
    mean_s = speed.concurrency / speed.rollouts_per_second
    return log_normal_shape(round(fit_log_normal(mean_s, speed.t_gen_p90_s)[1], 3))


def swap_s(demand: Demand, speed: Speed) -> float:
    """Return the seconds for which a swap stops the rollouts in flight."""
    rereads = demand.conduct.at_version_swap == "continue"
    return demand.t_swap_s + (speed.t_reread_s if rereads else 0.0)


def share_left_by_swaps(demand: Demand, speed: Speed) -> float:
    """Return the share of a worker's rate that new versions leave, from 0 to 1.

    "finish": with a version every P seconds and the drain of C rollouts in flight taking D, a cycle of P has P - D
    seconds of full work, and during the drain each slot does what was left of its rollout, r on average:
    ``(P - D + r) / P``. Where even a fresh batch outlasts P the next version waits when it ends, so that every batch
    is generated as a whole: ``mean / mean of the longest of C``.
    """
    period_s = demand.version_period_s
    pause_s = swap_s(demand, speed)
    if demand.conduct.at_version_swap != "finish" or demand.conduct.whole_batches:
        return max(0.0, 1.0 - pause_s / period_s)
    mean_s, shape = speed.concurrency / speed.rollouts_per_second, shape_for(demand, speed)
    whole_s = mean_s * mean_longest(shape, speed.concurrency)
    if whole_s >= period_s:
        return mean_s / (whole_s + pause_s)
    drain, rest = _residual(shape, speed.concurrency)
    full_s = max(0.0, period_s - pause_s - mean_s * drain)
    return max(0.0, min(1.0, (full_s + mean_s * rest) / period_s))


_shape = lru_cache(maxsize=16)(shape_of)


@lru_cache(maxsize=256)
def _residual(shape: tuple[float, ...], count: int) -> tuple[float, float]:
    """Return the mean of the longest of so many residual times, and the mean of one, in means of a whole rollout."""
    residual = residual_shape(shape)
    return mean_longest(residual, count), sum(residual) / len(residual)
