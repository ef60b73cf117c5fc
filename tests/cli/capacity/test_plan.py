from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from rollcast.runtime.errors import ConfigError, PoolError
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import small_pool


def test_the_table_has_assumptions_first_then_workers_then_totals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = call(capsys, "plan", *small_pool(tmp_path))
    assert found.status == 0
    words = ["assumptions", "staleness limit, S", "workers", "✓", "$/step", "T_bcast", "S needed", "LP bound"]
    places = [found.out.index(word) for word in words]
    assert places[:3] == sorted(places[:3])
    assert "of 8 workers" in found.out
    assert "4 of 5 rows used" in found.err
    assert "Skipped `free`: its price is 0. If it is free, set donated = yes in that row." in found.err


def test_json_is_alone_on_stdout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """At the level of file descriptors: a solver's own lines must not be among it."""
    found = call(capfd, "plan", *small_pool(tmp_path), "--format", "json")
    document = found.json
    assert document["schema"] == "rollcast.capacity.plan/1"
    assert document["inputs"]["skipped"][0]["reason"] == "zero"
    assert document["totals"]["chosen"] >= 3
    assert document["totals"]["usd_per_hour"] >= document["plan"]["lp_bound_usd_per_hour"]


def test_csv_has_a_row_for_every_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "plan", *small_pool(tmp_path), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(found.out)))
    assert len(rows) == 8
    assert {row["chosen"] for row in rows} == {"0", "1"}


def test_html_is_a_page_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "plan", *small_pool(tmp_path), "--format", "html", "--steps", "10")
    assert found.out.startswith("<!doctype html>")
    assert "forecast" in found.out


def test_infeasible_says_why_and_what_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "plan", *small_pool(tmp_path), "--staleness", "1")
    assert found.status == 2
    assert "infeasible: " in found.out
    assert "S: 1 -> 2" in found.out
    assert call(capsys, "plan", *small_pool(tmp_path), "--staleness", "1", "--format", "csv").status == 2
    page = call(capsys, "plan", *small_pool(tmp_path), "--staleness", "1", "--format", "html").out
    assert "S: 1 -&gt; 2" in page


def test_options_count_more_than_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--kappa", "2", "--uplink", "0.5", "--topology", "tree", "--set", "demand.headroom=1.5")
    demand = call(capsys, "plan", *small_pool(tmp_path), *words, "--format", "json").json["plan"]["demand"]
    assert (demand["publish_every_steps"], demand["learner_upload_bytes_per_second"]) == (2, 62.5e6)
    assert (demand["topology"]["shape"], demand["headroom"]) == ("tree", 1.5)


def test_a_forecast_has_the_learner_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--steps", "60", "--deadline-hours", "100", "--budget-usd", "0.5")
    found = call(capsys, "plan", *small_pool(tmp_path), *words)
    assert "the deadline is kept in 100% of the draws" in found.out
    assert "the budget is kept in 0% of the draws" in found.out
    forecast = call(capsys, "plan", *small_pool(tmp_path), *words, "--format", "json").json["forecast"]
    assert forecast["learner_usd"]["p50"] == pytest.approx(2.0, rel=0.3)


def test_what_is_wrong_is_told_before_anything_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = small_pool(tmp_path)
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        call(capsys, "plan", *options, "--plot", "plan.gif")
    with pytest.raises(ConfigError, match="--steps"):
        call(capsys, "plan", *options, "--steps", "0")
    with pytest.raises(PoolError, match="no pool at"):
        call(capsys, "plan", "--pool", str(tmp_path / "none.csv"))


def test_the_shipped_pool_and_demand_make_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "plan")
    assert found.status == 0
    assert "configs/pool.csv" in found.err
    assert "skipped" not in found.err
