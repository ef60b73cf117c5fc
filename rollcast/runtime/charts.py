"""Draw charts as PNG or SVG files: figure, axes, palette, legend and saving, the same for every chart of the project.

Each user brings its data and labels: the coordinator's reward.png and the planner's plots. matplotlib is imported when
a chart is drawn, because processes without it import this module's users too, and without pyplot, whose global state
is not safe in threads. The charts inside report.html are not drawn here: they are markup that follows the page's style
sheet into dark mode and has tooltips (coordinator/report/curves.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import ConfigError, MissingExtra, RunFolderError
from rollcast.runtime.install import install_command

#: Okabe and Ito, "Color universal design" (2008): people with colour blindness tell them apart; markers differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SIZE_INCHES = (8.0, 4.8)
_PANELS_SIZE_INCHES = (8.0, 6.4)
_PANEL_INCHES = 1.9  # least height of each of many panels
_DPI = 150
_APART = 15.0  # largest / smallest value of a linear axis


def check_path(path: Path) -> None:
    """Check a chart's file name before anything is computed for it.

    Raises:
        ConfigError: it ends neither in .png nor in .svg.
    """
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"cannot draw {path}", cause="a plot is PNG or SVG", fix="give it the ending .png or .svg")


def new_chart(title: str, subtitle: str = "") -> tuple[Any, Any]:
    """Return a figure and its axes.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure, (axes,) = new_panels(title, subtitle, 1)
    return figure, axes


def new_panels(title: str, subtitle: str, count: int) -> tuple[Any, list[Any]]:
    """Return a figure and its ``count`` axes, one below the other, which share the x axis.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plots need matplotlib, which is not installed", fix=install_command("capacity")) from None
    width, height = _SIZE_INCHES if count == 1 else _PANELS_SIZE_INCHES
    figure = Figure(figsize=(width, max(height, _PANEL_INCHES * count)), layout="constrained")
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold")
    panels = list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])
    panels[0].set_title(subtitle, loc="left", fontsize=9, color="0.35")
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, axis="y", color="0.9")
        axes.set_axisbelow(True)
    figure.align_ylabels(panels)
    return figure, panels


def series_style(number: int, of: int) -> dict[str, Any]:
    """Return the style of curve ``number`` of ``of``.

    Earlier curves have larger, hollow markers and broader lines, so that one on top of another shows both.
    """
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 6 + 1.2 * min(4, of - 1 - number),
        "markerfacecolor": "none",
        "linewidth": 1.4 + 0.4 * min(4, of - 1 - number),
        "alpha": 0.9,
    }


def mark_point(axes: Any, x: float, y: float, text: str, *, colour: str = COLOURS[1], right: bool = False) -> None:
    """Mark one point and write ``text`` below it, to the left of it where ``right`` is set (at the right edge)."""
    axes.plot([x], [y], color=colour, marker="o", markersize=8, linestyle="none", clip_on=False, zorder=5)
    axes.annotate(
        text,
        (x, y),
        xytext=(-8 if right else 8, -18),
        textcoords="offset points",
        ha="right" if right else "left",
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )


def integer_ticks(axis: Any) -> None:
    """Label whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def share_axis(axes: Any) -> None:
    """Let the y axis show a share from 0 to 100 %, with a small margin above."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def scale_to(axis: Any, values: Sequence[float]) -> None:
    """Begin an axis at 0; make it logarithmic, and labelled so, where small values would vanish next to large ones."""
    from matplotlib import ticker

    least, most = min(values, default=0.0), max(values, default=0.0)
    if least > 0 and most / least > _APART:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        between = "\n" if axis.axis_name == "y" else " "  # a low panel has no room for one long line beside it
        axis.set_label_text(f"{axis.get_label_text()}{between}(logarithmic)")
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(ticker.NullFormatter())
    elif most > 0:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, most * 1.08)})


def add_legend(figure: Any) -> None:
    """Put the legend under the axes, where it covers nothing."""
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def save(figure: Any, path: Path) -> None:
    """Write the chart's file.

    Raises:
        ConfigError: see check_path.
        RunFolderError: the file cannot be written.
    """
    check_path(path)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}", cause=str(error), fix="check that its folder exists") from None
