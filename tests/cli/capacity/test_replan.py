from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.runtime.errors import ConfigError, PlanFileError
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


def test_a_small_change_of_price_is_not_worth_a_switch_and_a_large_one_is(
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
    assert document["document"]["schema"] == "rollcast.capacity.plan/1"


def test_a_set_that_is_gone_is_status_2(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_what_is_wrong_is_told(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--discount"):
        call(capsys, "replan", "--from", str(plan_file), "--discount", "1.5")
    with pytest.raises(ConfigError, match="--events"):
        call(capsys, "replan", "--from", str(plan_file), "--plot", "a.png")
    with pytest.raises(PlanFileError):
        call(capsys, "replan", "--from", str(tmp_path / "pool.csv"))
    with pytest.raises(PlanFileError, match="cannot read"):
        call(capsys, "diff", str(plan_file), str(tmp_path / "none.json"))
