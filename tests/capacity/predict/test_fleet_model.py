from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capacity.catalogue.token_lengths import lengths_named
from capacity.model.demand import Conduct, Demand
from capacity.model.slot_times import log_normal_shape, shape_of
from capacity.predict.fleet_model import FleetModel
from capacity.predict.fleet_parts import Group, Measured, ModelWorker, Slot, t_bcast_of

DEMAND = Demand(
    rollouts_per_step=8,
    t_train_s=60.0,
    staleness_limit=5,
    update_bytes=1e8,
    learner_upload_bytes_per_second=1e8,
    t_load_s=1.0,
    t_score_s=0.5,
)
CONDUCT = Conduct(samples_per_group=2, whole_batches=True, prefetch_s=60.0)


def worker(number: int, seconds: float, **changes: Any) -> ModelWorker:
    made = ModelWorker(number, 2, seconds, (1.0,), 10.0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def measure(demand: Demand, seconds: float, conduct: Conduct = CONDUCT, count: int = 4, **changes: Any) -> Measured:
    workers = [worker(number, seconds, **changes) for number in range(count)]
    return FleetModel(demand, conduct, workers).measure(20, 60)


def utilisation(measured: Measured) -> float:
    return measured.train_s / measured.seconds


def test_half_the_rate_that_is_needed_gives_half_the_utilisation() -> None:
    # 4 workers x 2 rollouts / 120 s: 4 rollouts in 60 s, of 8 that are needed.
    assert utilisation(measure(DEMAND, 120.0)) == pytest.approx(0.5, rel=0.05)


def test_a_surplus_keeps_the_learner_busy_and_is_not_made_in_vain() -> None:
    measured = measure(DEMAND, 30.0)
    assert utilisation(measured) == pytest.approx(1.0, abs=0.01)
    assert measured.dropped < 0.02 * measured.trained
    assert measured.age_steps / measured.trained <= DEMAND.staleness_limit


def test_a_version_reaches_everybody_when_the_slowest_copy_is_there() -> None:
    workers = [worker(0, 60.0), worker(1, 60.0, copy_s=25.0)]
    measured = FleetModel(DEMAND, CONDUCT, workers).measure(10, 20)
    assert t_bcast_of(measured) == pytest.approx(25.0)


def test_a_copy_that_took_another_ones_place_is_not_given_up_in_turn() -> None:
    one = worker(0, 60.0, copy_s=100.0)
    assert one.announced(1, 0.0)
    assert one.announced(2, 40.0), "less than half of the first has arrived"
    assert not one.announced(3, 80.0)
    assert not one.announced(4, 85.0)
    assert (one.receiving, one.following, one.receive_until) == (2, 4, 140.0)
    one.stop_receiving(140.0)
    assert one.announced(4, 140.0)
    assert not one.announced(5, 195.0), "more than half has arrived"


def test_versions_that_come_faster_than_copies_are_received_all_the_same() -> None:
    measured = FleetModel(DEMAND, CONDUCT, [worker(number, 20.0, copy_s=130.0) for number in range(4)]).measure(10, 40)
    t_bcast_s = t_bcast_of(measured)
    assert t_bcast_s is not None
    assert 130.0 <= t_bcast_s <= 130.0 + 65.0 + 60.0


def test_what_is_too_old_is_never_trained() -> None:
    tight = replace(DEMAND, staleness_limit=1)
    measured = measure(tight, 80.0, count=8, shape=log_normal_shape(0.7))
    assert measured.age_steps <= measured.trained
    assert measured.dropped > 0, "a rollout begun with an earlier version is sometimes too old for S = 1"


def test_workers_that_pause_make_less() -> None:
    pausing = replace(DEMAND, pauses_while_receiving=True)
    busy = utilisation(measure(DEMAND, 100.0))
    assert utilisation(measure(pausing, 100.0, copy_s=25.0)) < 0.9 * busy


def test_preempted_workers_make_less() -> None:
    busy = utilisation(measure(DEMAND, 100.0))
    assert utilisation(measure(DEMAND, 100.0, lives_s=600.0, away_s=300.0)) < 0.85 * busy


def test_one_by_one_a_place_is_filled_again_while_others_run() -> None:
    one_by_one = replace(CONDUCT, whole_batches=False)
    uneven = [ModelWorker(number, 4, 60.0, log_normal_shape(0.8), 10.0) for number in range(2)]
    together = FleetModel(DEMAND, CONDUCT, uneven).measure(20, 60)
    apart = [ModelWorker(number, 4, 60.0, log_normal_shape(0.8), 10.0) for number in range(2)]
    alone = FleetModel(DEMAND, replace(one_by_one, at_version_swap="continue"), apart).measure(20, 60)
    assert utilisation(alone) > utilisation(together)


def test_the_same_fleet_gives_the_same_figures() -> None:
    assert measure(DEMAND, 90.0) == measure(DEMAND, 90.0)


def test_a_copy_that_is_more_than_half_here_is_finished_first() -> None:
    one = worker(0, 60.0, copy_s=100.0)
    assert one.announced(1, 0.0)
    assert one.announced(2, 40.0), "60 s are left of 100"
    assert not one.announced(3, 100.0), "40 s are left of 100"
    assert one.received_s(100.0) == pytest.approx(100.0)


def test_only_versions_that_are_young_enough_make_a_slot() -> None:
    one = worker(0, 60.0)
    one.active = 3
    group = Group([0.5, 0.5], 2)
    one.waiting = [Slot(group, 0.5, 1, 0.0, needs=4), Slot(group, 0.5, 1, 0.0, needs=3)]
    assert [slot.needs for slot in one.take(2)] == [3]
    assert group.too_old(10, 5) is False
    group.oldest = 4
    assert group.too_old(10, 5)


def test_a_worker_stops_the_rollouts_of_a_dropped_group() -> None:
    one = worker(0, 60.0)
    dropped, kept = Group([], 2), Group([], 2)
    one.running = [Slot(dropped, 0.5, 1, 0.0, needs=0), Slot(kept, 0.5, 1, 0.0, needs=0)]
    one.waiting = [Slot(dropped, 0.5, 1, 0.0, needs=0)]
    one.gives_up(dropped, running=True)
    assert ([slot.group for slot in one.running], one.waiting) == ([kept], [])


def test_a_preempted_slot_is_as_long_the_next_time() -> None:
    one = worker(0, 60.0, lives_s=1e12, away_s=600.0)
    fleet = FleetModel(DEMAND, replace(CONDUCT, whole_batches=False), [one])
    fleet.measure(1, 1)
    lost = sorted(slot.length for slot in (*one.running, *one.waiting))
    fleet._preempted(one)
    fleet._run(fleet._now + 2 * CONDUCT.reconnect_grace_s)
    assert lost
    assert lost == sorted(length for group in fleet._book.groups for length in group.vacant)


RUNS = [  # (samples per group, S, kappa, whole batches, at a swap, preempted) -> (trained, dropped, age, seconds)
    ((4, 4, 1, False, "continue", False), (576, 100, 1701, 583)),
    ((4, 3, 1, False, "continue", True), (512, 128, 1232, 607)),
    ((8, 4, 2, False, "finish", False), (1152, 104, 3502, 611)),
    ((2, 4, 1, True, "keep", True), (224, 44, 505, 615)),
    ((1, 6, 1, False, "keep", False), (128, 35, 322, 625)),
    ((4, 1, 1, False, "continue", True), (320, 68, 276, 626)),
    ((8, 2, 1, True, "finish", True), (832, 146, 1181, 562)),
]


def run_of(samples: int, limit: int, kappa: int, whole: bool, swap: str, preempted: bool) -> tuple[int, int, int, int]:
    """Model 8 uneven workers that make a little more than is needed."""
    demand = replace(
        DEMAND, rollouts_per_step=8 * samples, staleness_limit=limit, publish_every_steps=kappa, t_train_s=30.0
    )
    conduct = Conduct(samples_per_group=samples, whole_batches=whole, at_version_swap=swap, prefetch_s=20.0)
    fleet = []
    for number in range(8):
        concurrency, shape = (1, 4, 8)[number % 3], log_normal_shape((0.3, 0.7)[number % 2])
        mean_s = 3.6 * concurrency * (1.0 + 0.1 * number) * 8 / samples / 1.4
        away = {"lives_s": 900.0, "away_s": 60.0} if preempted and number % 2 else {}
        fleet.append(ModelWorker(number, concurrency, mean_s, shape, 5.0 + number, 1.0, **away))
    found = FleetModel(demand, conduct, fleet, seed=7).measure(20, 20)
    return found.trained, found.dropped, found.age_steps, round(found.seconds)


@pytest.mark.parametrize(("asked", "found"), RUNS)
def test_known_fleets_give_known_runs(asked: tuple[Any, ...], found: tuple[int, ...]) -> None:
    """Every decision of the model is determined, so that another way to find it must give the same run."""
    assert run_of(*asked) == found


def test_a_batch_takes_the_oldest_groups_not_those_that_were_ready_first() -> None:
    """Else old groups are left over when they are too old for the next batch, and are dropped."""
    fleet = FleetModel(replace(DEMAND, rollouts_per_step=2), CONDUCT, [worker(0, 60.0)])
    old, young = (fleet._book.begin([0.5, 0.5]) for _ in range(2))
    fleet._wanted = False
    fleet._scored(young)
    fleet._scored(old)
    fleet._ask()
    assert (old.over, young.over) == (True, False)


@pytest.mark.parametrize("seed", [0, 6])
def test_a_fast_worker_that_was_held_back_gets_work_again(seed: int) -> None:
    """While S holds new groups back it ends its long rollouts; measured in slots it seemed slow and got nothing."""
    lengths = lengths_named("deepseek-r1")
    assert lengths is not None
    shape = shape_of(lengths.capped(8192).quantiles(400))
    demand = replace(DEMAND, rollouts_per_step=64, staleness_limit=6, t_train_s=30.0, t_load_s=0.0)
    fleet = [ModelWorker(0, 64, 28.3, shape, 1.5, 2.6), ModelWorker(1, 16, 29.8, shape, 1.5, 2.6)]
    found = FleetModel(demand, Conduct(samples_per_group=8, prefetch_s=3.0), fleet, seed).measure(40, 120)
    assert found.train_s >= 0.97 * found.seconds


def test_a_run_that_is_continued_is_one_run() -> None:
    whole, parts = (
        FleetModel(DEMAND, CONDUCT, [worker(number, 130.0, lives_s=3000.0) for number in range(4)]) for _ in range(2)
    )
    parts.measure(20, 3)
    assert parts.measure(17, 20) == whole.measure(40, 20)
