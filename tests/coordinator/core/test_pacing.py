"""The goals of pacing, in virtual time: a learner that does not wait, and little wasted work, for any fleet."""

from __future__ import annotations

from dataclasses import replace

from tests.coordinator.core.closed_loop import ClosedLoop, Outcome, Scenario

BASE = Scenario(steps=28, groups_per_step=12)
SOME_SLOW = (1.0, 0.1, 1.0, 1.0, 0.2, 1.0, 0.5, 1.0, 1.0, 0.1)
ALL_KINDS = (1.0, 10.0, 3.0, 6.0, 1.3, 8.0, 4.0, 2.0, 7.0, 5.0)


def outcome(scenario: Scenario, pacing: str = "predict") -> Outcome:
    return ClosedLoop(replace(scenario, core={"pacing": pacing})).run()


def test_with_a_surplus_of_half_hardly_any_work_is_wasted_and_the_learner_does_not_wait() -> None:
    paced, unpaced = outcome(BASE), outcome(BASE, "none")
    assert (paced.dropped_share <= 0.02, paced.utilisation >= 0.98) == (True, True), paced
    assert unpaced.dropped_share > 0.2, unpaced


def test_where_groups_with_a_long_rollout_come_too_late_the_learner_does_not_wait_for_their_places() -> None:
    scenario = replace(BASE, sigma=0.8, generate_median_s=30.0, longest=10.0, groups_per_step=8)
    paced = outcome(scenario)
    assert paced.utilisation >= 0.98, paced
    assert paced.dropped_share > 0.1, "S is too small for one group in seven"
    roomy = outcome(replace(scenario, staleness_extra=2, steps=20))
    assert roomy.utilisation >= 0.98, roomy
    assert roomy.dropped_share < paced.dropped_share / 2, roomy


def test_a_few_slow_peers_do_not_spoil_the_work_of_all() -> None:
    scenario = replace(BASE, speeds=SOME_SLOW, groups_per_step=16, steps=32)
    paced, counted = outcome(scenario), outcome(scenario, "count")
    assert paced.utilisation >= 0.98, paced
    assert paced.dropped_share <= 0.04, paced
    assert counted.dropped_share > 0.15, counted


def test_speeds_of_one_to_ten_and_other_surpluses() -> None:
    for scenario in (
        replace(BASE, speeds=ALL_KINDS, groups_per_step=24, generate_median_s=60.0, steps=16),
        replace(BASE, surplus=2.0, steps=16),
        replace(BASE, surplus=0.1),
    ):
        paced = outcome(scenario)
        assert paced.dropped_share <= 0.03, (scenario, paced)
        assert paced.utilisation >= 0.97, (scenario, paced)
