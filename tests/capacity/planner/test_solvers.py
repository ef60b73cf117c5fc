"""Test the solvers: the exact programme, local search and splits; none of them prints anything."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from capacity.model.workers import Speed
from capacity.planner.columns import columns_of
from capacity.planner.core_milp import WHOLE_POOL_COLUMNS, best_in_core, core_of
from capacity.planner.linear import Relaxation, relax
from capacity.planner.local_search import dropped, improved, rounded, weights_of
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from capacity.planner.splits import Cover, splits_of, times_of
from capacity.planner.totals import copies_sent, egress_of, marginal_usd_per_gb, totals_of
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
    found = relax(programme_of(wanted, columns_of(demand(), workers), Split(20.0, 100.0)))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_best_set_of_the_core_is_found(seed: int) -> None:
    relaxation = relaxation_of(seed, 9)
    totals = totals_of(relaxation.programme)
    found = best_in_core(relaxation, relaxation.x > 0.5, time_limit_s=20.0)
    assert found.chosen is not None
    sets = np.array(list(itertools.product([False, True], repeat=9)))
    sums = np.array([totals.of(chosen) for chosen in sets])
    best = totals.usd_per_hour(sums)[totals.feasible(sums)].min()
    assert totals.usd_per_hour(totals.of(found.chosen)[None, :])[0] == pytest.approx(best)
    assert found.bound == pytest.approx(best)


def test_the_core_holds_swapped_and_doubtful_workers() -> None:
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
    assert found.chosen is not None
    others = np.setdiff1d(np.arange(count), core)
    assert core.size == 80
    assert found.bound == 0.0
    assert (found.chosen[others] == chosen[others]).all()


def solved(prices_and_rates: list[tuple[float, float]], **fields: object):  # type: ignore[no-untyped-def]
    workers = [
        worker(number, usd_per_hour=price, speeds=(Speed(1, rate, 20.0),), **fields)
        for number, (price, rate) in enumerate(prices_and_rates)
    ]
    relaxation = relax(programme_of(demand(), columns_of(demand(), workers), Split(20.0, 100.0)))
    assert relaxation is not None
    return relaxation, totals_of(relaxation.programme)


@pytest.mark.parametrize(
    ("pool", "best"),
    [
        ([(2.0, 2.0), (2.0, 2.0), (2.0, 2.0), (1.1, 1.0)], 5.1),  # the last one out, a smaller one in
        ([(3.0, 3.0), (3.1, 3.0), (2.05, 2.0)], 5.05),
        ([(5.2, 5.0), (2.5, 2.5), (2.6, 2.4), (0.2, 0.1)], 5.2),  # several out, one in
    ],
)
def test_swaps_find_the_best_of_a_handful(pool: list[tuple[float, float]], best: float) -> None:
    relaxation, totals = solved(pool)
    chosen = rounded(relaxation)
    found = improved(relaxation, totals, chosen, weights_of(relaxation, totals, chosen))
    sums = totals.of(found)[None, :]
    assert totals.feasible(sums)[0]
    assert totals.usd_per_hour(sums)[0] == pytest.approx(best)


def test_rounding_takes_every_part() -> None:
    relaxation, _ = solved([(2.0, 2.0)] * 4)
    assert rounded(relaxation).sum() == 3
    assert relaxation.x.sum() == pytest.approx(2.5)


def test_workers_not_needed_are_dropped_in_order() -> None:
    _, totals = solved([(1.0, 2.0)] * 5)
    found = dropped(totals, np.ones(5, np.bool_), np.array([3, 1, 0, 2, 4]))
    assert found.tolist() == [True, False, True, False, True]


def test_the_pinned_stay() -> None:
    relaxation, totals = solved([(1.0, 2.0)] * 5, pin="on")
    assert dropped(totals, np.ones(5, np.bool_), np.arange(5)).all()
    chosen = rounded(relaxation)
    assert improved(relaxation, totals, chosen, weights_of(relaxation, totals, chosen)).all()


def test_only_p90s_that_leave_time_to_broadcast_are_tried() -> None:
    wanted = demand(staleness_limit=2)  # 60 s
    pool = columns_of(demand(), [worker(0, speeds=(Speed(1, 1.0, 20.0), Speed(8, 2.0, 60.0), Speed(9, 0.0, 5.0)))])
    assert times_of(wanted, pool).tolist() == [20.0]
    assert splits_of(wanted, pool, 5) == (Split(20.0, 40.0),)
    assert times_of(demand(staleness_limit=2, update_bytes=0.0), pool).tolist() == [20.0, 60.0]
    assert splits_of(demand(staleness_limit=1), pool, 5) == ()


def relaxed(bound: float) -> Relaxation:
    return replace(relaxation_of(0, 9), bound=bound)


def test_a_cover_finds_the_best_of_many_splits_and_bounds_all_the_others() -> None:
    costs = np.abs(np.arange(5000) - 3712.4) + 7.0
    solved_intervals: list[tuple[int, int]] = []

    def relax_over(first: int, last: int, _near: Relaxation | None) -> Relaxation:
        solved_intervals.append((first, last))
        return relaxed(float(costs[first : last + 1].min()) - (last - first) / 1000)

    cover = Cover(np.arange(5000.0), relax_over, most=256)
    best = cover.pop_lowest()
    assert best is not None
    assert best.first == best.last == 3712
    cover.close(best.bound)
    assert cover.bound == best.bound
    assert len(solved_intervals) < 60
    left = [interval for interval in cover.open_intervals if interval.bound < costs.min()]
    assert not left


def test_a_cover_that_may_not_be_refined_keeps_a_bound_of_every_split() -> None:
    cover = Cover(np.arange(5000.0), lambda first, last, _near: relaxed(float(first)), most=4)
    taken = cover.pop_lowest()
    assert taken is not None
    cover.close(taken.bound)
    covered = sorted([(one.first, one.last) for one in (*cover.open_intervals, taken)])
    assert covered[0][0] == 0
    assert covered[-1][1] == 4999
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(covered))


def test_intervals_without_a_solution_are_left_out_for_good() -> None:
    cover = Cover(np.arange(100.0), lambda first, last, _near: relaxed(1.0) if last >= 70 > first else None, most=256)
    found = cover.pop_lowest()
    assert found is None
    assert cover.bound == np.inf


_PROGRAM = """
import ctypes, subprocess
from capacity.planner.core_milp import c_prints_to_stderr

libc = ctypes.CDLL(None)
print("before", flush=True)
for _ in range(2):
    c_prints_to_stderr()
    libc.puts(b"puts")
    libc.printf(b"printf\\n")
print("after", flush=True)
subprocess.run(["echo", "a child"], check=True)
"""


def test_what_c_code_prints_goes_to_standard_error_and_nothing_else_does() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines() == ["before", "after", "a child"]
    assert ran.stderr.splitlines() == ["puts", "printf"] * 2


def test_the_cheapest_send_first_and_those_of_one_price_share() -> None:
    workers = [worker(0), worker(1, upload_bytes_per_second=4e7)]
    workers += [worker(number, egress_usd_per_gb=0.09, usd_per_hour=0.0) for number in (2, 3, 4)]
    wanted = demand(learner_egress_usd_per_gb=0.2, learner_upload_bytes_per_second=2.12e7)
    programme = programme_of(wanted, columns_of(demand(), workers), Split(20.0, 53.0))  # rho 20 MB/s
    copies = copies_sent(programme, np.ones(5, np.bool_))
    assert copies.source == pytest.approx(1.0)
    assert copies.receivers.tolist() == pytest.approx([1.0, 2.0, 1 / 3, 1 / 3, 1 / 3])
    assert marginal_usd_per_gb(programme, copies) == 0.09
    egress = egress_of(programme, copies)
    assert egress.origin_usd_per_hour == pytest.approx(0.2 * 60)
    assert egress.workers_usd_per_hour.tolist() == pytest.approx([0, 0, 1.8, 1.8, 1.8])


def test_too_few_uplinks_are_refused() -> None:
    no_relays = columns_of(demand(), [worker(n, relays=False) for n in range(4)])
    programme = programme_of(demand(), no_relays, Split(20.0, 30.0))
    with pytest.raises(ValueError, match="cannot send"):
        copies_sent(programme, np.ones(4, np.bool_))
