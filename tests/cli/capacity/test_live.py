from __future__ import annotations

from typing import Any

from rollcast.cli.capacity.live import lines_of

PLAN = {
    "number": 3,
    "on": 1,
    "off": 1,
    "usd_per_hour": 0.4,
    "lp_bound_usd_per_hour": 0.39,
    "rate_rollouts_per_second": 2.0,
    "rate_needed_rollouts_per_second": 1.9,
    "t_bcast_s": 4.0,
    "infeasible": "",
}


def activation(**changes: Any) -> dict[str, Any]:
    return {"mode": "act", "on": 1, "standby": 1, "usd_per_hour": 0.4, "plan": PLAN, "failed": ""} | changes


def peer(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "standby": False, "pin": "", "usd_per_hour": 0.4, "reason": "on: cheap"} | changes


def test_a_line_in_all_one_of_the_plan_and_one_a_peer() -> None:
    off = peer("peer-2", standby=True, pin="off", usd_per_hour=2.0, reason="off: pinned by the operator")
    assert lines_of(activation(), [peer("peer-1"), off]) == [
        "mode act: 1 on for 0.4 $/h, 1 on standby",
        "plan 3: 1 on for 0.4 $/h, at least 0.39 $/h; 2 of 1.9 rollouts/s needed; T_bcast 4 s",
        "\N{CHECK MARK} peer-1                0.4 $/h  on: cheap",
        "  peer-2                  2 $/h [pinned off]  off: pinned by the operator",
    ]


def test_why_there_is_no_set_and_why_there_is_no_plan() -> None:
    infeasible = activation(plan=PLAN | {"infeasible": "S is too small"}, failed="it broke")
    assert lines_of(infeasible, [])[1:] == ["plan 3: no set will do: S is too small", "the last plan failed: it broke"]
