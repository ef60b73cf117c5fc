"""Test `rollcast study scale`: its table, JSON and plot, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.cli.simulation import study
from rollcast.cli.simulation.study import _Progress, app
from rollcast.runtime.errors import ConfigError

SMALL = ["scale", "--peers", "4,8", "--churn", "4", "--minutes", "6", "--warm-up-minutes", "6"]


def test_it_prints_a_row_for_each_fleet_and_draws_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "scale.svg"
    assert app([*SMALL, "--plot", str(plot)], result_action="return_value") == 0
    printed = capsys.readouterr()
    rows = [line.split()[:2] for line in printed.out.splitlines() if line.strip()[:1] in "48"]
    assert rows == [["4", "4"], ["8", "4"]]
    assert max(map(len, printed.out.splitlines())) <= 80
    assert printed.err.splitlines()[-1] == "simulated 8 peers at churn 4"
    assert plot.read_text().startswith("<?xml")


def test_it_tells_every_half_minute_how_far_each_fleet_is(capsys: pytest.CaptureFixture[str]) -> None:
    times_s = iter([0.0, 20.0, 31.0, 32.0, 45.0, 62.0])
    progress = _Progress([(100, 1.0), (1000, 4.0)], lambda: next(times_s))
    for place, share in ((0, 0.1), (0, 0.2), (1, 0.015), (0, 0.3), (0, 0.4)):
        progress(place, share)
    told = ["100 peers at churn 1: 20%", "1000 peers at churn 4: 2%", "100 peers at churn 1: 40%"]
    assert capsys.readouterr().err.splitlines() == told


def test_json_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert app([SMALL[0], "--peers", "4", "--churn", "1", *SMALL[5:], "--json"], result_action="return_value") == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (point["peers"], point["churn"], point["violations"]) == (4, 1.0, 0)
    assert {"core_share", "core_block_ms_max", "usd_per_kilo_rollout", "origin_copies", "t_bcast_p95_s"} <= point.keys()


def test_what_is_found_already_is_not_simulated_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    market, results = tmp_path / "market.csv", tmp_path / "results.jsonl"
    market.write_text("0,3\n60000,3\n")
    asked = [SMALL[0], "--peers", "4", "--churn", "1", *SMALL[5:], "--spot", str(market), "--results", str(results)]
    found = []
    for _ in range(2):
        assert app([*asked, "--json"], result_action="return_value") == 0
        printed = capsys.readouterr()
        found.append(json.loads(printed.out))
    assert found[0] == found[1]
    assert found[0]["points"][0]["trace"] == "market"
    assert printed.err.startswith("simulating 0 fleets")
    assert len(results.read_text().splitlines()) == 1
    drawn: list[int] = []
    monkeypatch.setattr(study, "_draw", lambda points, path: drawn.extend(point.peers for point in points))
    with results.open("a") as file:
        file.write(json.dumps({"cell": "of another study", "point": found[0]["points"][0] | {"peers": 9}}) + "\n")
    assert app([*asked, "--plot", "scale.svg"], result_action="return_value") == 0
    assert drawn == [4, 9]
    results.write_text("no result\n")
    with pytest.raises(ConfigError, match="cannot read the results"):
        app(asked, result_action="return_value", exit_on_error=False)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--peers", "many"], "no list of numbers"),
        (["--churn", "-1"], "no list of numbers"),
        (["--peers", "0"], "must be whole and above 0"),
        (["--peers", "1.5"], "must be whole and above 0"),
        (["--minutes", "0"], "must be above 0"),
        (["--processes", "0"], "below 1"),
        (["--usd-per-hour", "-1"], "below 0"),
        (["--spot", "missing.csv"], "No such file"),
        (["--plot", "scale.txt"], "PNG or SVG"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as found:
        app(["scale", *options], result_action="return_value", exit_on_error=False)
    assert reason in str(found.value) + found.value.cause


def test_compiled_cores_that_are_missing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcast.sim.compiled.FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="the cores are not compiled"):
        app([*SMALL, "--compiled"], result_action="return_value", exit_on_error=False)
