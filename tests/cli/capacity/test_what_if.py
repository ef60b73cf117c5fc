from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.runtime.errors import ConfigError
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import small_pool


def test_every_combination_has_a_row_and_the_cheapest_a_tick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--staleness", "1..3", "--topology", "stripes=8,star", "--format", "json")
    found = call(capsys, "what-if", *small_pool(tmp_path), *words)
    rows = found.json["variants"]
    assert (found.status, len(rows)) == (0, 6)
    feasible = [row for row in rows if row["infeasible"] is None]
    best = next(row for row in rows if row["cheapest"])
    assert best["usd_per_step"] == min(row["usd_per_step"] for row in feasible)
    assert all(row["infeasible"] for row in rows if row["staleness"] == 1)


def test_plots_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plots = (tmp_path / "s.svg", tmp_path / "b.svg")
    words = ("--staleness", "2,4", "--plot", str(plots[0]), "--plot-broadcast", str(plots[1]))
    assert call(capsys, "what-if", *small_pool(tmp_path), *words).status == 0
    assert all(plot.read_text().startswith("<?xml") for plot in plots)


def test_nothing_feasible_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "what-if", *small_pool(tmp_path), "--staleness", "1")
    assert (found.status, "0 of 1 are feasible" in found.out) == (2, True)


def test_what_cannot_be_varied_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = small_pool(tmp_path)
    with pytest.raises(ConfigError, match="nothing is varied"):
        call(capsys, "what-if", *options)
    with pytest.raises(ConfigError, match="not varied"):
        call(capsys, "what-if", *options, "--kappa", "1,2", "--plot", str(tmp_path / "s.png"))
