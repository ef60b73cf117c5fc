from __future__ import annotations

from typing import Any

import pytest

from coordinator.api.settings import SettingsChange, budget_in_force, orders_of, proposed_settings, settings_of
from coordinator.core.events.operator_events import BudgetChanged, PublishPeriodChanged, StalenessLimitChanged
from coordinator.core.events.prices import Budget
from coordinator.core.staleness.policy import RulesInForce, StalenessRules
from rollcast.runtime.errors import MalformedMessage
from tests.coordinator.core_world import World

BUDGET = Budget(usd_per_hour_max=5.0)


def wanted(values: dict[str, Any], *, limit: int = 4, kappa: int = 1, now: int | None = None) -> list[Any]:
    """The orders that a change comes to."""
    rules = RulesInForce(StalenessRules(limit, kappa))
    if now is not None:
        rules.change_limit(now)
    return orders_of(proposed_settings(SettingsChange(**values), rules, BUDGET), rules.rules, BUDGET)


def test_only_what_changes_is_ordered() -> None:
    assert wanted({}) == []
    assert wanted({"staleness_limit": 4, "usd_per_hour_max": 5.0}) == []
    assert wanted({"publish_every_steps": "auto"}) == [PublishPeriodChanged(0)]
    assert wanted({"usd_total_max": 9.0}) == [BudgetChanged(Budget(usd_per_hour_max=5.0, usd_total_max=9.0))]
    assert wanted({"usd_per_hour_max": None}) == [BudgetChanged(Budget())]


def test_each_order_goes_with_what_holds_before_it() -> None:
    """kappa may be S + 1 at most at any moment."""
    smaller = wanted({"staleness_limit": 0, "publish_every_steps": 1}, kappa=4)
    assert smaller == [PublishPeriodChanged(1), StalenessLimitChanged(0)]
    larger = wanted({"staleness_limit": 4, "publish_every_steps": 5}, now=1)
    assert larger == [StalenessLimitChanged(4), PublishPeriodChanged(5)]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"staleness_limit": 5}, "S can be set from 0 to 4"),
        ({"publish_every_steps": 6}, "kappa = 6 does not fit S = 4"),
        ({"staleness_limit": 1, "publish_every_steps": 3}, "kappa = 3 does not fit S = 1"),
        ({"staleness_limit": None}, "must have a value"),
        ({"publish_every_steps": None}, "must have a value"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(MalformedMessage, match=says):
        wanted(values)


def test_settings_say_what_may_be_set() -> None:
    core = World(staleness_limit=3, publish_every_steps=2).core
    core.handle(StalenessLimitChanged(2), 0.0)
    found = settings_of(core, Budget(usd_total_max=7.0)).model_dump()
    assert found["staleness_limit"] == {"value": 2, "configured": 3, "least": 1, "most": 3}
    assert found["publish_every_steps"] == {"value": 2, "configured": 2, "least": 1, "most": 3, "auto": False}
    assert found["usd_total_max"] == {"value": 7.0, "configured": None, "least": 0, "most": None}
    core.handle(PublishPeriodChanged(0), 0.0)
    assert settings_of(core, Budget()).publish_every_steps.auto


def test_the_tighter_of_two_limits_counts() -> None:
    assert budget_in_force(Budget(usd_per_hour_max=5.0), 3.0).usd_per_hour_max == 3.0
    assert budget_in_force(Budget(usd_total_max=5.0), 3.0) == Budget(usd_per_hour_max=3.0, usd_total_max=5.0)
    assert budget_in_force(Budget(), None) == Budget()
