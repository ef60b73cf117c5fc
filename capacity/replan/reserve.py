"""Size the reserve of workers by what an idle learner costs.

The rate that is lost to preemptions at any one moment has a mean, which the programme buys in addition, and a
deviation. A further worker that costs c USD/h earns the whole bill's share of its rate whenever the learner is short of
rollouts; so the reserve is right where the learner is short for the share of time that is the workers' share of the
bill (the newsvendor's critical ratio: Arrow, Harris and Marschak 1951).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import NormalDist

from capacity.model.demand import Demand
from capacity.model.workers import Worker

HEADROOM_LEAST = 1.0  # what preemptions take on average and the rounding up to whole workers are a surplus already
_NORMAL = NormalDist()


def with_reserve(demand: Demand, workers: Sequence[Worker]) -> Demand:
    """Return the demand with the headroom that makes the whole bill smallest; unchanged if the learner has no price."""
    fixed = demand.learner_usd_per_hour + demand.storage_usd_per_hour
    needed = demand.rollouts_per_step / demand.t_train_s
    if fixed <= 0.0:
        return demand
    rate = usd_per_hour = variance = 0.0
    for worker, per_s in _cheapest_first(workers):
        if rate >= needed:
            break
        lost = worker.preemption_loss
        rate += per_s * (1.0 - lost)
        usd_per_hour += worker.usd_per_hour
        variance += per_s**2 * lost * (1.0 - lost)
    if usd_per_hour <= 0.0:  # donated workers cost nothing: as many as the operator asks for
        return demand
    deviations = _NORMAL.inv_cdf(fixed / (fixed + usd_per_hour))
    return replace(demand, headroom=max(HEADROOM_LEAST, 1.0 + deviations * math.sqrt(variance) / needed))


def _cheapest_first(workers: Iterable[Worker]) -> list[tuple[Worker, float]]:
    """Return the workers that may be on with their rollouts a second, those with the cheapest rollouts first."""
    rated = [
        (worker, max(speed.rollouts_per_second for speed in worker.speeds))
        for worker in workers
        if worker.speeds and worker.pin != "off"
    ]
    return sorted(rated, key=lambda one: one[0].usd_per_hour / (one[1] * max(1e-9, 1.0 - one[0].preemption_loss)))
