"""Test how far ahead of the learner workers may generate, and how stale that makes rollouts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.model.pacing import Pace, median
from capacity.model.staleness import staleness_needed


def measured(pace: Pace, turnaround_s: float = 60.0) -> Pace:
    for _ in range(40):
        pace.answered(1.0 / turnaround_s, 1, turnaround_s, 1.0)
    return pace


def steps(pace: Pace, count: int, *, wait_s: float, stale: int = 0) -> None:
    for _ in range(count):
        pace.waits(pace.recorded_at + 60.0)
        pace.formed(pace.recorded_at + 60.0 + wait_s, 16, stale)


def test_nothing_is_held_back_before_enough_is_measured() -> None:
    pace = Pace(1.0)
    assert pace.groups_of_use(8, 0.5) == math.inf
    assert pace.steps_until_ready(0.0, 1, 4, 0.0, begun=False) is None


def test_groups_of_use_are_a_batch_what_is_under_way_and_a_margin() -> None:
    pace = measured(Pace(0.0))
    steps(pace, 3, wait_s=0.0)
    assert pace.groups_of_use(8, 0.5) == pytest.approx(8 * (1 + 1 + 0.5))


def test_the_pace_of_a_learner_that_never_waits_is_known_too() -> None:
    pace = measured(Pace(0.0))
    for _ in range(5):
        pace.formed(pace.recorded_at + 60.0, 16, 0)
    assert pace.groups_of_use(8, 0.5) == pytest.approx(8 * (1 + 1 + 0.5))


def test_what_has_time_waits_for_the_version_on_its_way() -> None:
    pace = measured(Pace(0.0))
    steps(pace, 3, wait_s=0.0)
    assert pace.steps_old(19, 8, 20.0, 1) == math.inf, "it is not known how late versions come"
    pace.came(-1, pace.recorded_at)
    pace.came(1, pace.recorded_at + 30.0)
    steps(pace, 1, wait_s=0.0)
    old = [pace.steps_old(ahead, 8, 20.0, 1) for ahead in (0, 11, 12, 16, 20, 30)]
    assert old == pytest.approx([math.inf, math.inf, 3.5, 3.0, 2.5, 2.5])


def test_caution_grows_while_work_is_in_vain_and_gives_way_to_a_learner_that_waits() -> None:
    pace = Pace(0.0)
    steps(pace, 5, wait_s=0.0, stale=4)
    cautious = pace.caution.chance
    assert cautious > 0.25
    steps(pace, 20, wait_s=6.0)
    assert pace.caution.chance < cautious


def test_what_is_slower_is_ready_in_a_later_step() -> None:
    pace = measured(Pace(0.0))
    steps(pace, 3, wait_s=0.0)
    now = pace.recorded_at
    soon = pace.steps_until_ready(1.0 / 30.0, 1, 4, now, begun=False)
    late = pace.steps_until_ready(1.0 / 200.0, 1, 4, now, begun=False)
    assert soon == 0
    assert late is not None
    assert late >= 3


def test_places_are_discounted_only_after_a_learner_had_to_wait() -> None:
    pace = measured(Pace(0.0))
    pace.group_yield.ended(50, in_time=False)
    assert pace.places_ahead(10, 4) == 10
    steps(pace, 20, wait_s=6.0)
    assert 4 <= pace.places_ahead(10, 4) < 10


def test_of_two_in_the_middle_the_upper_one_is_the_median() -> None:
    assert median([3.0, 1.0, 2.0, 4.0]) == 3.0


@pytest.mark.parametrize(
    ("t_bcast_s", "t_gen_s", "t_train_s", "kappa", "needed"),
    [
        (0.0, 0.0, 60.0, 1, 1),
        (10.0, 50.0, 60.0, 1, 2),
        (10.0, 51.0, 60.0, 1, 3),
        (30.0, 120.0, 60.0, 1, 4),
        (30.0, 120.0, 60.0, 4, 7),
        (0.2, 0.6, 1.0, 1, 2),
    ],
)
def test_worked_examples(t_bcast_s: float, t_gen_s: float, t_train_s: float, kappa: int, needed: int) -> None:
    found = staleness_needed(t_bcast_s=t_bcast_s, t_gen_p90_s=t_gen_s, t_train_s=t_train_s, publish_every_steps=kappa)
    assert found == needed


milliseconds = st.integers(0, 10**6)


@settings(max_examples=100, deadline=None)
@given(milliseconds, milliseconds, st.integers(1, 10**6), st.integers(1, 50), milliseconds)
def test_it_is_the_age_of_the_oldest_rollout_and_rises_with_every_delay(
    bcast_ms: int, gen_ms: int, train_ms: int, kappa: int, more_ms: int
) -> None:
    def needed(bcast: int, gen: int) -> int:
        return staleness_needed(t_bcast_s=bcast, t_gen_p90_s=gen, t_train_s=train_ms, publish_every_steps=kappa)

    assert needed(bcast_ms, gen_ms) == kappa + math.ceil((bcast_ms + gen_ms) / train_ms)
    assert needed(bcast_ms + more_ms, gen_ms) >= needed(bcast_ms, gen_ms)
    assert needed(bcast_ms, gen_ms + more_ms) == needed(bcast_ms + more_ms, gen_ms)


@pytest.mark.parametrize(
    "wrong", [{"t_bcast_s": -1.0}, {"t_gen_p90_s": -1.0}, {"t_train_s": 0.0}, {"publish_every_steps": 0}]
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    values = {"t_bcast_s": 1.0, "t_gen_p90_s": 1.0, "t_train_s": 1.0, "publish_every_steps": 1}
    with pytest.raises(ValueError, match="at least 1"):
        staleness_needed(**{**values, **wrong})  # type: ignore[arg-type]
