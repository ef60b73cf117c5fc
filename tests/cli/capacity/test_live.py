"""Test plans for a run in progress: from its live workers, again after changes, and its cost so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capacity.fleet.rows import encode
from coordinator.stores.sqlite import Ledger
from rollcast.cli.capacity.cost import cost
from rollcast.cli.capacity.live import lines_of
from rollcast.cli.main import app
from rollcast.runtime.errors import ConfigError, PlanFileError, RunFolderError
from rollcast.runtime.run_folder import RunFolder
from tests.capacity.reports.test_tables import ROWS
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import POOL, small_pool


@pytest.fixture
def plan_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(call(capsys, "plan", *small_pool(tmp_path), "--format", "json").out)
    return path


def test_nothing_changes_without_a_cause(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "replan", "--from", str(plan_file))
    assert (found.status, "0 switched on, 0 off" in found.out) == (0, True)
    diff = call(capsys, "replan", "--from", str(plan_file), "--format", "json").json["diff"]
    assert not diff["totals"], "the same set is expected to do the same"


def test_only_a_large_price_change_causes_a_switch(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demand = ("--demand", str(tmp_path / "demand.toml"))
    pool = tmp_path / "dearer.csv"
    for price, status in (("0.95", 0), ("2.9", 3)):
        pool.write_text(POOL.replace("cheap,3,l4,lab,0.4", f"cheap,3,l4,lab,{price}"))
        found = call(capsys, "replan", "--from", str(plan_file), "--pool", str(pool), *demand)
        assert found.status == status, found.out
    document = call(capsys, "replan", "--from", str(plan_file), "--pool", str(pool), *demand, "--format", "json").json
    assert document["set_changed"]
    assert {one["on"] for one in document["diff"]["switched"]} == {True, False}
    assert document["document"]["schema"] == "rollcast.capacity.plan/2"


def test_insufficient_set_is_status_2(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--demand", str(tmp_path / "demand.toml"), "--pool", str(tmp_path / "pool.csv"), "--staleness", "1")
    found = call(capsys, "replan", "--from", str(plan_file), *words)
    assert (found.status, "infeasible" in found.out) == (2, True)


def test_two_plans_are_compared(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = call(capsys, "diff", str(plan_file), str(plan_file))
    assert same.status == 0
    other = tmp_path / "other.json"
    other.write_text(
        call(capsys, "plan", *small_pool(tmp_path), "--set", "demand.headroom=1.9", "--format", "json").out
    )
    found = call(capsys, "diff", str(plan_file), str(other))
    assert (found.status, "headroom" in found.out) == (3, True)
    assert call(capsys, "diff", str(plan_file), str(other), "--format", "json").json["set_changed"]


def test_a_plan_is_followed_through_a_record(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, plot = tmp_path / "trace.jsonl", tmp_path / "timeline.png"
    trace.write_text(
        '{"at_s": 1800, "kind": "gone", "worker_id": "cheap-1", "reason": "preempted"}\n'
        '{"at_s": 3000, "kind": "gone", "worker_id": "cheap-2"}\n'
    )
    words = ("--from", str(plan_file), "--events", str(trace), "--plot", str(plot))
    found = call(capsys, "replan", *words)
    assert found.status == 3
    assert "cheap-1" in found.out
    assert plot.read_bytes()[:4] == b"\x89PNG"
    totals = call(capsys, "replan", *words[:4], "--hours", "2", "--format", "json").json["totals"]
    assert totals["hours"] == pytest.approx(2.0)
    assert totals["switches_later"] >= 1
    assert totals["utilisation"] > 0.8
    trace.write_text("")
    assert call(capsys, "replan", *words[:4]).status == 0


def test_errors_name_the_problem(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--discount"):
        call(capsys, "replan", "--from", str(plan_file), "--discount", "1.5")
    with pytest.raises(ConfigError, match="--events"):
        call(capsys, "replan", "--from", str(plan_file), "--plot", "a.png")
    with pytest.raises(PlanFileError):
        call(capsys, "replan", "--from", str(tmp_path / "pool.csv"))
    with pytest.raises(PlanFileError, match="cannot read"):
        call(capsys, "diff", str(plan_file), str(tmp_path / "none.json"))


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


def test_status_has_lines_for_run_plan_and_peers() -> None:
    off = peer("peer-2", standby=True, pin="off", usd_per_hour=2.0, reason="off: pinned by the operator")
    assert lines_of(activation(), [peer("peer-1"), off]) == [
        "the planner switches workers: 1 on for 0.4 $/h, 1 on standby",
        "plan 3: 1 on for 0.4 $/h, at least 0.39 $/h; 2 of 1.9 rollouts/s needed; T_bcast 4 s",
        "\N{CHECK MARK} peer-1                0.4 $/h  on: cheap",
        "  peer-2                  2 $/h [pinned off]  off: pinned by the operator",
    ]


def test_status_of_a_run_without_prices_has_none() -> None:
    off = activation(mode="off", usd_per_hour=0.0, plan=None, standby=0)
    assert lines_of(off, [peer("peer-1", usd_per_hour=0.0, reason="on since it joined")]) == [
        "the planner is off: 1 on, 0 on standby; no prices are set",
        "\N{CHECK MARK} peer-1            on since it joined",
    ]


def test_why_there_is_no_set_and_why_there_is_no_plan() -> None:
    infeasible = activation(plan=PLAN | {"infeasible": "S is too small"}, failed="it broke")
    assert lines_of(infeasible, [])[1:] == [
        "plan 3: no set of workers is sufficient: S is too small",
        "the last plan failed: it broke",
    ]


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    await Ledger.open(RunFolder(tmp_path).ledger).close()
    path = RunFolder(tmp_path).fleet_journal
    path.parent.mkdir()
    path.write_bytes(b"".join(encode(row) for row in ROWS))
    return tmp_path


def test_cost_table_has_a_row_per_day_and_provider(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cost(run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("2026")] == [
        ["2026-03-01", "sky", "2.0000", "0.0000", "2.0000", "2.5000", "-20.0%"],
        ["2026-03-01", "ssh", "1.0000", "0.2500", "1.2500", "1.0000", "+25.0%"],
        ["2026-03-02", "ssh", "0.5000", "0.0000", "0.5000", "0.5000", "+0.0%"],
    ]
    assert "total 3.7500 $ of 4.0000 $ forecast" in lines
    assert "running: 1 at sky, 1 at ssh" in lines


def test_json_is_alone_on_stdout(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["capacity", "cost", str(run), "--json"], exit_on_error=False, result_action="return_value") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total"]["spent_usd"] == 3.75
    assert (document["accepted_rollouts"], document["usd_per_accepted_rollout"]) == (0, None)


def test_run_without_a_cost_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="has no record of costs"):
        cost(tmp_path)
