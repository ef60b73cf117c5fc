"""Test the share of groups that come in time, in which the newest groups count most."""

from __future__ import annotations

import pytest

from capacity.model.pacing_rules import Caution, GroupYield


def test_nothing_is_discounted_before_a_group_came_too_late() -> None:
    groups = GroupYield()
    groups.ended(12, in_time=True)
    assert groups.share == 1.0


def test_the_share_is_that_of_the_groups_that_ended_last() -> None:
    groups = GroupYield()
    for _ in range(100):
        groups.ended(3, in_time=True)
        groups.ended(1, in_time=False)
    assert groups.share == pytest.approx(0.78, abs=0.01)  # eight are assumed to have been in time
    for _ in range(100):
        groups.ended(4, in_time=True)
    assert groups.share > 0.99


def test_a_group_that_is_ready_is_of_use_whatever_became_of_others() -> None:
    groups = GroupYield()
    groups.ended(8, in_time=False)
    assert groups.share == 0.5
    assert groups.expected(10, 4) == 7
    assert groups.expected(3, 4) == 3


def test_waiting_makes_bolder_at_once_and_stale_rollouts_more_cautious_by_and_by() -> None:
    caution = Caution()
    at_first = caution.chance
    caution.learn(0.0, trained=98, stale=2, beginning=False)
    careful = caution.chance
    assert at_first < careful
    caution.learn(0.5, trained=100, stale=0, beginning=True)
    assert caution.chance < at_first
    assert not caution.learner_waited, "a run that is beginning waits whatever its pacing is"
    caution.learn(0.5, trained=100, stale=0, beginning=False)
    assert caution.learner_waited
    for _ in range(50):
        caution.learn(0.0, trained=90, stale=10, beginning=False)
    assert caution.chance < careful, "not as cautious as before the wait"
    assert not caution.learner_waited
