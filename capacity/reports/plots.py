"""Pictures of plans, as PNG or SVG. matplotlib is imported when one is drawn, without its global state.

Colours are those of Okabe and Ito, "Color universal design" (2008), which colour-blind people tell apart; lines differ
in their markers too.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import ConfigError, MissingExtra, RunFolderError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SIZE_INCHES = (8.0, 4.8)
_DPI = 150
_APART = 15.0  # largest / smallest value of a linear axis
_NAMED_MAX = 24  # points of a scatter that carry their names


@dataclass(frozen=True, slots=True)
class Point:
    """One plan. ``y`` is None where it is infeasible."""

    x: float
    y: float | None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """A replay between two samples: averages over the time up to ``at_s``."""

    at_s: float
    workers_on: int
    usd_per_hour: float
    utilisation: float


def cost_against_staleness(path: Path, series: Mapping[str, Sequence[Point]], subtitle: str) -> None:
    """$/h of the cheapest set for each staleness limit; limits for which there is none are marked on the axis."""
    figure, axes = _figure("Cost of the cheapest set against the staleness limit", subtitle)
    for number, (name, points) in enumerate(series.items()):
        feasible = [(point.x, point.y) for point in points if point.y is not None]
        label = name if feasible else f"{name}: infeasible"
        axes.plot([x for x, _ in feasible], [y for _, y in feasible], label=label, **_style(number, len(series)))
    nowhere = sorted({point.x for points in series.values() for point in points if point.y is None})
    never = [x for x in nowhere if not any(p.y is not None and p.x == x for points in series.values() for p in points)]
    for number, x in enumerate(never):
        why = "no set of these workers will do" if number == 0 else None
        axes.axvspan(x - 0.5, x + 0.5, color="0.85", zorder=0, linewidth=0, label=why)
    axes.xaxis.set_major_locator(_ticker().MaxNLocator(integer=True))
    axes.set(xlabel="staleness limit S, learner steps", ylabel="workers and traffic, $/h")
    _scale(axes.yaxis, [point.y for points in series.values() for point in points if point.y is not None])
    _legend(axes, len(series) > 1 or bool(never))
    _save(figure, path)


def utilisation_against_workers(path: Path, curve: Sequence[Point], chosen: int, subtitle: str) -> None:
    """Predicted learner utilisation with the first k workers of the plan's order; the plan's own k is marked."""
    figure, axes = _figure("Learner utilisation against workers that are on", subtitle)
    axes.plot([point.x for point in curve], [point.y for point in curve], color=COLOURS[0])
    at = next((point for point in curve if point.x == chosen), None)
    if at is not None and at.y is not None:
        axes.plot([at.x], [at.y], color=COLOURS[1], marker="o", markersize=8, linestyle="none")
        axes.axvline(at.x, color=COLOURS[1], linewidth=1, linestyle=":")
        axes.annotate(
            f"the plan: {chosen} workers, {at.y:.1%}",
            (at.x, at.y),
            xytext=(8, -18),
            textcoords="offset points",
        )
    axes.set(xlabel="workers on, in the order in which the plan takes them", ylabel="share of time the learner trains")
    axes.set_ylim(0, 1.05)
    axes.set_xlim(0, max(point.x for point in curve) * 1.25)
    axes.yaxis.set_major_formatter(_ticker().PercentFormatter(1.0))
    axes.xaxis.set_major_locator(_ticker().MaxNLocator(integer=True))
    _save(figure, path)


def cost_against_broadcast(path: Path, series: Mapping[str, Sequence[Point]], subtitle: str) -> None:
    """$/step of each plan against its T_bcast in seconds; points carry their names as long as there are few."""
    figure, axes = _figure("Cost of a learner step against the time of a broadcast", subtitle)
    total = sum(len(points) for points in series.values())
    for number, (name, points) in enumerate(series.items()):
        feasible = [point for point in points if point.y is not None]
        style = _style(number, len(series)) | {"linestyle": "none"}
        label = name if feasible else f"{name}: infeasible"
        axes.plot([point.x for point in feasible], [point.y for point in feasible], label=label, **style)
        for point in feasible if total <= _NAMED_MAX else ():
            axes.annotate(point.name, (point.x, point.y), xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set(xlabel="T_bcast, s", ylabel="workers and traffic, $/step")
    found = [(point.x, point.y) for points in series.values() for point in points if point.y is not None]
    _scale(axes.xaxis, [x for x, _ in found])
    _scale(axes.yaxis, [y for _, y in found])
    _legend(axes, len(series) > 1)
    _save(figure, path)


def timeline(path: Path, moments: Sequence[Moment], subtitle: str) -> None:
    """Workers on, $/h and utilisation over the hours of a replay."""
    figure = _blank((8.0, 6.4))
    figure.suptitle("Replay of the plan", x=0.02, ha="left", fontweight="bold")
    hours = [moment.at_s / 3600.0 for moment in moments]
    panels = (
        ("workers on", [float(moment.workers_on) for moment in moments]),
        ("workers, $/h", [moment.usd_per_hour for moment in moments]),
        ("learner trains", [moment.utilisation for moment in moments]),
    )
    axes = figure.subplots(len(panels), 1, sharex=True)
    for number, (panel, (label, values)) in enumerate(zip(axes, panels, strict=True)):
        panel.step(hours, values, where="pre", color=COLOURS[number])
        panel.set_ylabel(label)
        panel.set_ylim(0, max(values) * 1.1 or 1.0)
        panel.set_xlim(0, hours[-1] or 1.0)
        _plain(panel)
    axes[0].yaxis.set_major_locator(_ticker().MaxNLocator(integer=True))
    axes[2].set_ylim(0, 1.05)
    axes[2].yaxis.set_major_formatter(_ticker().PercentFormatter(1.0))
    axes[0].set_title(subtitle, loc="left", fontsize=9, color="0.35")
    axes[-1].set_xlabel("hours since the start")
    figure.align_ylabels(axes)
    _save(figure, path)


def check_path(path: Path) -> None:
    """Before anything is computed for it.

    Raises:
        ConfigError: it is neither .png nor .svg.
    """
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"cannot draw {path}", cause="a plot is PNG or SVG", fix="name it .png or .svg")


def _blank(size: tuple[float, float] = _SIZE_INCHES) -> Any:
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise MissingExtra(
            "plots are drawn with matplotlib, which is not installed", fix="pip install 'rollcast[capacity]'"
        ) from None
    return figures.Figure(figsize=size, layout="constrained")


def _figure(title: str, subtitle: str) -> tuple[Any, Any]:
    figure = _blank()
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold")
    axes = figure.subplots()
    axes.set_title(subtitle, loc="left", fontsize=9, color="0.35")
    _plain(axes)
    return figure, axes


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, axis="y", color="0.9")
    axes.set_axisbelow(True)


def _scale(axis: Any, values: Sequence[float]) -> None:
    """From 0; logarithmic, and labelled so, where the values are too far apart to be told from each other."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    if least > 0 and most / least > _APART:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_label_text(f"{axis.get_label_text()} (logarithmic)")
        axis.set_major_locator(_ticker().LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(_ticker().FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(_ticker().NullFormatter())
    elif most > 0:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, most * 1.08)})


def _style(number: int, of: int) -> dict[str, Any]:
    """Earlier curves have larger, hollow markers and broader lines, so that one on top of another shows both."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 6 + 1.2 * min(4, of - 1 - number),
        "markerfacecolor": "none",
        "linewidth": 1.4 + 0.4 * min(4, of - 1 - number),
        "alpha": 0.9,
    }


def _legend(axes: Any, needed: bool) -> None:
    """Under the axes, where it covers nothing."""
    if needed:
        axes.figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def _ticker() -> Any:
    return importlib.import_module("matplotlib.ticker")


def _save(figure: Any, path: Path) -> None:
    check_path(path)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}", cause=str(error), fix="check that its folder exists") from None
