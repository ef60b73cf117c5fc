from __future__ import annotations

from typing import Any

from coordinator.metrics.families import activation_families

STATUS: dict[str, Any] = {
    "mode": "act",
    "on": 2,
    "standby": 1,
    "usd_per_hour": 0.9,
    "switches": 3,
    "plan": None,
    "rate_correction": 0.8,
    "t_bcast_correction": 1.0,
    "t_train_correction": 1.0,
}
PLAN = {
    "usd_per_hour": 1.0,
    "lp_bound_usd_per_hour": 0.9,
    "rate_rollouts_per_second": 2.0,
    "rate_needed_rollouts_per_second": 1.8,
}


def values(activation: dict[str, Any] | None) -> dict[str, float]:
    found = {}
    for family in activation_families(activation):
        for sample in family.samples:
            found[sample.name + "".join(sample.labels.values())] = sample.value
    return found


def test_who_is_on_and_what_it_costs() -> None:
    assert values(STATUS) == {
        "rollcast_peers_on": 2.0,
        "rollcast_peers_standby": 1.0,
        "rollcast_peers_usd_per_hour": 0.9,
        "rollcast_activation_switches": 3.0,
        "rollcast_correction_ratiorate": 0.8,
        "rollcast_correction_ratiot_bcast": 1.0,
        "rollcast_correction_ratiot_train": 1.0,
    }
    assert values(STATUS | {"plan": PLAN})["rollcast_plan_lp_bound_usd_per_hour"] == 0.9


def test_nothing_where_nobody_decides() -> None:
    assert values(STATUS | {"mode": "off"}) == values(None) == {}


def test_the_budget_is_told_whoever_decides() -> None:
    limited = STATUS | {"mode": "off", "usd_per_hour_max": 2.0, "usd_total_max": None}
    assert values(limited) == {"rollcast_budget_usd_per_hour": 2.0}
