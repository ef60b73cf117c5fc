from __future__ import annotations

import pytest

from coordinator.tasks.volatility import Volatility


def rewarded(volatility: Volatility, problem_id: str, *rewards: float) -> None:
    for reward in rewards:
        volatility.rewarded(problem_id, reward)


def test_problems_are_drawn_by_how_much_their_rewards_vary() -> None:
    volatility = Volatility(3, 0.1)
    rewarded(volatility, "solved", *[1.0] * 40)
    rewarded(volatility, "hopeless", *[0.0] * 40)
    rewarded(volatility, "learnable", *[0.0, 1.0] * 20)
    assert volatility.chance("solved") == volatility.chance("hopeless") == 0.1
    assert volatility.chance("learnable") > 0.9
    assert volatility.chance("never drawn") == 1.0
    passes = range(1, 1001)
    assert 60 < sum(volatility.wanted("solved", times) for times in passes) < 140
    assert sum(volatility.wanted("learnable", times) for times in passes) > 900
    assert volatility.wanted("solved", 0)


def test_the_figures_are_moving_ones() -> None:
    volatility = Volatility(3, 0.1)
    rewarded(volatility, "a", *[1.0] * 50)
    last = volatility.rewarded("a", 0.0)
    assert last.rollouts == 51
    assert last.mean == pytest.approx(0.9)
    assert last.variance == pytest.approx(0.09)


def test_what_the_ledger_kept_decides_the_same() -> None:
    first = Volatility(3, 0.1)
    kept = [first.rewarded(f"p{n}", float(n % 2)) for n in range(20)]
    kept += [first.rewarded("p3", 0.0)]
    again = Volatility(3, 0.1, {one.problem_id: one for one in kept}.values())
    asked = [(f"p{n}", times) for n in range(20) for times in range(20)]
    assert [first.wanted(*one) for one in asked] == [again.wanted(*one) for one in asked]
    assert [Volatility(4, 0.1, kept).wanted(*one) for one in asked] != [first.wanted(*one) for one in asked]
