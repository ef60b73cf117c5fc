from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rollcast.runtime import charts
from rollcast.runtime.errors import ConfigError, MissingExtra, RunFolderError


def test_a_chart_is_png_or_svg_in_a_folder_that_exists(tmp_path: Path) -> None:
    figure, axes = charts.new_chart("cost", "of 8 workers")
    axes.plot([1, 2], [3, 4], label="a", **charts.series_style(0, 2))
    charts.mark_point(axes, 2, 4, "here", right=True)
    charts.add_legend(figure)
    charts.save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        charts.check_path(Path("plan.gif"))
    with pytest.raises(RunFolderError):
        charts.save(figure, tmp_path / "missing" / "a.png")


def test_an_axis_is_logarithmic_only_where_values_are_far_apart() -> None:
    _, axes = charts.new_chart("cost")
    charts.scale_to(axes.yaxis, [1.0, 4.0])
    assert (axes.get_yscale(), axes.get_ylim()[0]) == ("linear", 0.0)
    charts.scale_to(axes.yaxis, [1.0, 100.0])
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel().endswith("(logarithmic)")


def test_panels_share_the_look_of_single_charts() -> None:
    _, panels = charts.new_panels("replay", "6 hours", 3)
    assert len(panels) == 3
    assert panels[0].get_title("left") == "6 hours"
    assert not any(axes.spines["top"].get_visible() for axes in panels)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match="matplotlib") as caught:
        charts.new_chart("cost")
    assert "[capacity]" in str(caught.value.fix)
