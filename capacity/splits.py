"""How the staleness budget ``(S - kappa) T_train`` is divided between generating and broadcasting.

More time to generate lets each worker run more rollouts at once, so that it makes more; what is left to broadcast in
raises the rate at which every copy must travel. Between two p90s that some worker offers, a longer time to generate
gains nothing, so only these are tried.
"""

from __future__ import annotations

import numpy as np

from capacity.columns import Columns
from capacity.demand import Demand
from capacity.plans import Split


def splits_of(demand: Demand, columns: Columns, most: int) -> tuple[Split, ...]:
    """Splits worth trying, by rising time to generate; empty where no worker's rollout is young enough.

    Args:
        most: at most so many, spread over those that there are.
    """
    times = columns.generation_times_s()
    times = times[times < demand.budget_s] if demand.update_bytes > 0 else times[times <= demand.budget_s]
    if times.size > most:
        times = times[np.unique(np.linspace(0, times.size - 1, most).round().astype(np.int64))]
    return tuple(Split(float(t_gen_s), float(demand.budget_s - t_gen_s)) for t_gen_s in times)
