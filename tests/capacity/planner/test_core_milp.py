from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from capacity.model.workers import Speed
from capacity.planner.columns import columns_of
from capacity.planner.core_milp import WHOLE_POOL_COLUMNS, best_in_core, core_of
from capacity.planner.linear import Relaxation, relax
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from capacity.planner.totals import totals_of
from tests.capacity.planner.test_planner import demand, worker


def relaxation_of(seed: int, count: int) -> Relaxation:
    rng = random.Random(seed)
    workers = [
        worker(
            number,
            usd_per_hour=rng.uniform(0.5, 2.0),
            speeds=(Speed(1, rng.uniform(0.5, 2.0), 20.0),),
            upload_bytes_per_second=rng.uniform(0.0, 2e7),
            egress_usd_per_gb=rng.choice([0.0, 0.02]),
        )
        for number in range(count)
    ]
    wanted = demand(learner_upload_bytes_per_second=2e7)
    found = relax(programme_of(wanted, columns_of(workers), Split(20.0, 100.0)))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_best_set_of_the_core_is_found(seed: int) -> None:
    relaxation = relaxation_of(seed, 9)
    totals = totals_of(relaxation.programme)
    found = best_in_core(relaxation, relaxation.x > 0.5, time_limit_s=20.0)
    assert found is not None
    sets = np.array(list(itertools.product([False, True], repeat=9)))
    sums = np.array([totals.of(chosen) for chosen in sets])
    best = totals.usd_per_hour(sums)[totals.feasible(sums)].min()
    assert totals.usd_per_hour(totals.of(found.chosen)[None, :])[0] == pytest.approx(best)
    assert found.bound == pytest.approx(best)


def test_the_core_holds_who_was_swapped_and_who_is_in_doubt() -> None:
    relaxation = relaxation_of(0, WHOLE_POOL_COLUMNS + 30)
    surest = int(np.abs(relaxation.reduced).argmax())
    chosen = relaxation.x > 0.5
    assert surest not in core_of(relaxation, chosen, 5)
    chosen[surest] = not chosen[surest]
    assert surest in core_of(relaxation, chosen, 5)


def test_the_others_stay_as_they_are() -> None:
    count = WHOLE_POOL_COLUMNS + 50
    relaxation = relaxation_of(1, count)
    chosen = relaxation.x > 1e-6
    core = core_of(relaxation, chosen)
    found = best_in_core(relaxation, chosen, time_limit_s=1.0, gap=0.01)
    assert found is not None
    others = np.setdiff1d(np.arange(count), core)
    assert core.size == 80
    assert found.bound == 0.0
    assert (found.chosen[others] == chosen[others]).all()
