from __future__ import annotations

from capacity.model.workers import Speed
from capacity.planner.columns import columns_of
from capacity.planner.plans import Split
from capacity.planner.splits import explore, splits_of, times_of
from tests.capacity.planner.test_planner import demand, worker


def columns(count: int):  # type: ignore[no-untyped-def]
    return columns_of([worker(number, speeds=(Speed(1, 1.0, 1.0 + number / 10),)) for number in range(count)])


def test_only_p90s_that_leave_time_to_broadcast_are_tried() -> None:
    wanted = demand(staleness_limit=2)  # 60 s
    pool = columns_of([worker(0, speeds=(Speed(1, 1.0, 20.0), Speed(8, 2.0, 60.0), Speed(9, 0.0, 5.0)))])
    assert times_of(wanted, pool).tolist() == [20.0]
    assert splits_of(wanted, pool, 5) == (Split(20.0, 40.0),)
    assert times_of(demand(staleness_limit=2, update_bytes=0.0), pool).tolist() == [20.0, 60.0]
    assert splits_of(demand(staleness_limit=1), pool, 5) == ()


def test_a_large_grid_is_refined_about_its_best() -> None:
    tried: list[float] = []

    def bound(split: Split) -> float:
        tried.append(split.t_gen_s)
        return abs(split.t_gen_s - 37.3)

    explore(demand(), columns(1000), 16, bound)
    assert len(tried) == 16
    assert len(set(tried)) == 16
    assert min(abs(t_gen_s - 37.3) for t_gen_s in tried) < 1.0


def test_a_grid_without_a_set_is_not_refined() -> None:
    tried: list[float] = []

    def bound(split: Split) -> float:
        tried.append(split.t_gen_s)
        return float("inf")

    explore(demand(), columns(1000), 16, bound)
    assert len(tried) == 8


def test_a_small_pool_is_tried_at_every_time() -> None:
    tried: list[float] = []

    def bound(split: Split) -> float:
        tried.append(split.t_gen_s)
        return 1.0

    explore(demand(), columns(30), 4, bound)
    assert len(tried) == 30
