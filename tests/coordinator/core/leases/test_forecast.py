"""Forecasts: how long attempts and steps take, and how many groups will be useful."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.leases.attempts import Attempt
from coordinator.core.leases.batches import Usefulness
from coordinator.core.leases.forecast import EPISODES_NEEDED, LENGTHS_NEEDED, Forecast, _Sorted
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids

A, B = PeerId("a"), PeerId("b")


def attempt(peer: PeerId, *, load: int = 4, issued_at: float = 0.0) -> Attempt:
    return Attempt(LeaseId(1), FencingToken(1), GroupId(1), 0, peer, 1e9, issued_at=issued_at, load=load)


def measured(seconds: list[float], peer: PeerId = A) -> Forecast:
    forecast = Forecast()
    for taken in seconds:
        forecast.answered(attempt(peer), taken, 100)
    return forecast


def test_speed_is_load_over_turnaround() -> None:
    forecast = measured([10.0] * 40)
    assert forecast.slots_per_s(A, 10.0) == pytest.approx(0.4)
    assert forecast.typical_s(A, 8, 10.0) == pytest.approx(20.0)
    assert forecast.slots_per_s(B, 10.0) is None
    assert forecast.typical_s(B, 8, 10.0) == 10.0, "of all peers, where it was not measured"
    assert forecast.slots_per_s(A, 1e5) is None, "too long ago"


def test_the_longest_rollout_takes_as_much_longer_as_it_has_tokens() -> None:
    assert Forecast().longest_s(A, 4, 400, 0.0) is None
    forecast = measured([10.0] * 40)  # 100 tokens each
    assert forecast.longest_s(A, 8, 400, 10.0) == pytest.approx(80.0)
    assert forecast.longest_s(B, 8, 400, 10.0) == pytest.approx(40.0)
    assert forecast.longest_s(A, 8, 50, 10.0) == pytest.approx(20.0), "no shorter than usual"


def test_the_speeds_of_all_members_are_remembered() -> None:
    forecast, peers = Forecast(), [PeerId(f"p{number}") for number in range(17_000)]
    forecast.joined(len(peers))
    for peer in peers:
        forecast.answered(attempt(peer), 10.0, 100)
    assert all(forecast.slots_per_s(peer, 10.0) for peer in peers)


def test_episodes_are_measured_whole() -> None:
    """Four turns, each of which sometimes takes 9 s instead of 1, hardly ever take four times 9 s."""
    forecast = measured([1.0] * 90 + [9.0] * 10)
    forecast.learner_s = 4.0
    for _ in range(EPISODES_NEEDED - 1):
        forecast.episode_ended(4, seconds=12.0)
    assert forecast.steps_under_way(8) == pytest.approx(forecast.turns * 9.0 / 4.0), "before enough are measured"
    forecast.episode_ended(4, seconds=12.0)
    assert forecast.steps_under_way(8) == pytest.approx(3.0)
    assert forecast.generate_p90_s() == forecast.episode_p90_s() == 12.0


def test_a_games_turns_are_shared_by_its_agents() -> None:
    forecast = Forecast()
    forecast.episode_ended(6, agents=2)
    assert (forecast.turns, forecast.own_turns) == (6.0, 3.0)
    assert forecast.episode_p90_s() is None, "an earlier coordinator began it"


def test_a_peer_that_ends_its_long_rollouts_last_is_not_slow() -> None:
    """Else pacing gives it less and less work, and what it still holds is measured as slower and slower."""
    forecast = Forecast()
    for number in range(128):
        forecast.answered(attempt(A), 1.0 + number % 9, 100 + 100 * (number % 9))
    before = forecast.slots_per_s(A, 10.0)
    assert before == pytest.approx(4 / 5.0)
    for _ in range(16):
        forecast.answered(attempt(A), 50.0, 5000)
    assert forecast.slots_per_s(A, 50.0) == pytest.approx(before)
    for _ in range(16):
        forecast.answered(attempt(A), 50.0, 500)
    assert forecast.slots_per_s(A, 50.0) == pytest.approx(4 / 50.0), "now it is"


def test_only_what_an_attempt_generated_itself_counts_for_its_peers_speed() -> None:
    given = Segment("assistant", Epoch(0), Version(0), B, pack_ids((2,) * 60), b"\x01" * 60)
    forecast = measured([10.0] * 40)
    for _ in range(16):
        forecast.answered(replace(attempt(B), prefix=(given,)), 4.0, 100)
    assert forecast.slots_per_s(B, 10.0) == pytest.approx(0.4)


def test_attempts_of_an_earlier_coordinator_are_not_measured() -> None:
    forecast = Forecast()
    forecast.answered(attempt(A, load=0), 10.0, 100)
    assert forecast.slots_per_s(A, 10.0) is None


def test_the_required_chance_grows_with_the_slots() -> None:
    forecast = measured([10.0] * 20 + [10.0, 10.0, 10.0, 20.0] * 20)
    typical_s = forecast.typical_s(A, 4, 100.0)
    one, eight = (forecast.outlook(slots, 0.7, 1.0, 100.0).ready_in_s(typical_s) for slots in (1, 8))
    assert one == pytest.approx(10.0)
    assert eight == pytest.approx(20.0)
    assert measured([10.0] * 5).outlook(1, 0.7, 1.0, 10.0).ready_in_s(typical_s) is None, "too few measurements"


def test_attempts_that_end_late_count_as_slow() -> None:
    forecast = measured([10.0] * 40)
    for _ in range(20):
        forecast.gave_up(attempt(B), 5.0)
    assert forecast.slots_per_s(B, 5.0) is None, "it might have been as fast as the others"
    for _ in range(20):
        forecast.gave_up(attempt(B), 100.0)
    assert forecast.slots_per_s(B, 100.0) == pytest.approx(0.04)
    forecast.answered(attempt(B), 20.0, 100)
    forecast.gave_up(attempt(B), 1000.0)
    assert forecast.slots_per_s(B, 1000.0) == pytest.approx(0.2), "what it delivers says more"


def learner(forecast: Forecast, steps: int, *, waits_s: float, stale: int = 0, since: int = 0) -> None:
    """Simulate steps of 60 s, in which the learner trains and then waits for ``waits_s``."""
    for step in range(since, since + steps):
        asked_at = (step + 1) * 60.0 - waits_s
        counts = {"trained": 16 * step, "stale": stale * step}
        forecast.learner(asked_at, recorded=step, waits=True, **counts)
        forecast.learner(asked_at + waits_s, recorded=step + 1, waits=False, **counts)


def test_the_learners_pace_is_measured() -> None:
    forecast = Forecast()
    learner(forecast, 5, waits_s=6.0)
    assert (forecast.step_period_s, forecast.learner_s) == (60.0, 54.0)
    assert (forecast.next_in_s(300.0), forecast.next_in_s(350.0), forecast.next_in_s(400.0)) == (60.0, 10.0, 0.0)
    assert [forecast.steps_within(seconds, 350.0) for seconds in (10.0, 11.0, 70.0, 71.0)] == [0, 1, 1, 2]


def test_the_pace_of_a_learner_that_never_waits_is_measured_too() -> None:
    forecast = Forecast()
    for step in range(5):
        forecast.learner(60.0 * step, recorded=step, waits=False)
    assert forecast.learner_s == 60.0, "else what is under way is never known, and too much is begun"


def test_how_old_versions_are_when_they_come() -> None:
    forecast = Forecast()
    forecast.version_came(Version(0), 1.0)
    for step in range(4):
        forecast.learner(60.0 * step, recorded=step, waits=False)
    assert forecast.version_lag_steps() is None, "no step was timed when it came"
    forecast.version_came(Version(3), 181.0)
    assert forecast.version_lag_steps() is None, "not of a step that has begun"
    for seconds in (12.0, 30.0, 45.0):  # with two steps done, the third began at 180
        forecast.version_came(Version(2), 180.0 + seconds)
    assert forecast.version_lag_steps() == pytest.approx(0.5)
    for _ in range(4):
        forecast.version_came(Version(1), 1e4)
    assert forecast.version_lag_steps() == pytest.approx(2.0), "a learner that waits makes no steps"


def test_caution_grows_while_work_is_wasted_and_shrinks_when_the_learner_waits() -> None:
    forecast = Forecast()
    at_first = forecast.caution.chance
    learner(forecast, 10, waits_s=0.0, stale=1)
    careful = forecast.caution.chance
    assert careful > at_first
    learner(forecast, 1, waits_s=20.0, stale=1, since=10)
    bold = forecast.caution.chance
    assert bold < careful
    learner(forecast, 30, waits_s=0.0, stale=1, since=11)
    assert bold < forecast.caution.chance < careful, "not at once as far as before"


def test_a_learner_starves_once_it_waits_for_longer_than_attempts_take() -> None:
    forecast = measured([10.0] * 40)
    assert not forecast.learner_starves(100.0)
    forecast.learner(100.0, recorded=0, waits=True)
    assert [forecast.learner_starves(now) for now in (109.0, 110.0)] == [False, True]


def test_steps_in_flight_and_the_length_of_stragglers() -> None:
    forecast = measured([10.0] * 54 + [30.0] * 11)
    assert forecast.steps_under_way(1) is None
    learner(forecast, 3, waits_s=0.0)
    forecast.scored(5.0)
    assert forecast.steps_under_way(1) == pytest.approx(35.0 / 60.0)
    beyond = forecast.spread_beyond(1.5)
    assert beyond is not None
    assert beyond > 1.5
    assert forecast.spread_beyond(100.0) is None


@pytest.mark.parametrize(("size", "every"), [(8, 3), (16, 16), (32, 4)])
def test_quantiles_are_of_the_newest_measurements_when_they_were_last_sorted(size: int, every: int) -> None:
    sorted_now_and_then, values = _Sorted(size, every), [float(number * 7 % 11) for number in range(60)]
    for count, value in enumerate(values, 1):
        sorted_now_and_then.add(value)
        until = count if count <= every else count - count % every
        known = sorted(values[max(0, until - size) : until])
        assert len(sorted_now_and_then) == min(count, size)
        assert [sorted_now_and_then.quantile(share) for share in (0.0, 0.5, 1.0)] == [
            known[0],
            known[(len(known) + 1) // 2 - 1],
            known[-1],
        ]
        larger = [one for one in known if one >= 5.0]
        assert sorted_now_and_then.median_above(5.0) == (larger[len(larger) // 2] if larger else None)


def test_how_many_groups_must_be_made_for_each_that_is_trained_on() -> None:
    usefulness = Usefulness()
    for number in range(400):
        usefulness.seen(useful=number % 2 == 0)
    assert 1.8 < usefulness.groups_per_useful_one < 2.2
    for _ in range(400):
        usefulness.seen(useful=False)
    assert usefulness.groups_per_useful_one == 5.0


def test_each_batch_has_its_own_bound() -> None:
    usefulness = Usefulness()
    usefulness.dropped = 3
    usefulness.batch_recorded()
    assert usefulness.dropped == 0


def test_a_group_is_under_way_for_as_long_as_its_longest_sample() -> None:
    """Otherwise too few groups are kept open where lengths have a long tail, and the learner starves."""
    forecast = Forecast()
    forecast.learner_s = 10.0
    for number in range(200):
        forecast._turnaround_s.add(100.0 if number % 20 == 0 else 10.0)
    assert forecast.steps_under_way(1) == pytest.approx(1.0)
    assert forecast.steps_under_way(16) == pytest.approx(10.0)


def test_lengths_are_described_once_there_are_enough() -> None:
    forecast = Forecast()
    for tokens in range(1, LENGTHS_NEEDED):
        forecast.answered(attempt(A), 1.0, tokens)
    assert forecast.length_quantiles(4) == ()
    for tokens in range(LENGTHS_NEEDED, 513):
        forecast.answered(attempt(A), 1.0, tokens)
    assert forecast.length_quantiles(4) == pytest.approx((64.0, 192.0, 320.0, 448.0), abs=1.0)
