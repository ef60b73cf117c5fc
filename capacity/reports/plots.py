"""Plot plans and replays as PNG or SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollcast.runtime import charts

_NAMED_MAX = 24  # a scatter with more points carries no names: they would overlap


@dataclass(frozen=True, slots=True)
class Point:
    """One plan; ``y`` is None where no set of workers is feasible."""

    x: float
    y: float | None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """One sample of a replay: averages since the sample before, up to ``at_s`` seconds after the start."""

    at_s: float
    workers_on: int
    usd_per_hour: float
    utilisation: float


def cost_against_staleness(path: Path, series: Mapping[str, Sequence[Point]], subtitle: str) -> None:
    """Draw the $/h of the cheapest set for each staleness limit; shade the limits for which no set is feasible."""
    figure, axes = charts.new_chart("Cost of the cheapest set against the staleness limit", subtitle)
    for number, (name, points) in enumerate(series.items()):
        feasible = [(point.x, point.y) for point in points if point.y is not None]
        label = name if feasible else f"{name}: infeasible"
        style = charts.series_style(number, len(series))
        axes.plot([x for x, _ in feasible], [y for _, y in feasible], label=label, **style)
    nowhere = sorted({point.x for points in series.values() for point in points if point.y is None})
    never = [x for x in nowhere if not any(p.y is not None and p.x == x for points in series.values() for p in points)]
    for number, x in enumerate(never):
        why = "no set of these workers is feasible" if number == 0 else None
        axes.axvspan(x - 0.5, x + 0.5, color="0.85", zorder=0, linewidth=0, label=why)
    charts.integer_ticks(axes.xaxis)
    axes.set(xlabel="staleness limit S, learner steps", ylabel="workers and traffic, $/h")
    charts.scale_to(axes.yaxis, [point.y for points in series.values() for point in points if point.y is not None])
    if len(series) > 1 or never:
        charts.add_legend(figure)
    charts.save(figure, path)


def utilisation_against_workers(path: Path, curve: Sequence[Point], chosen: int, subtitle: str) -> None:
    """Draw the predicted learner utilisation with the first k workers of the plan's order; mark the k of the plan."""
    figure, axes = charts.new_chart("Learner utilisation against workers that are on", subtitle)
    axes.plot([point.x for point in curve], [point.y for point in curve], color=charts.COLOURS[0])
    at = next((point for point in curve if point.x == chosen), None)
    if at is not None and at.y is not None:
        axes.axvline(at.x, color=charts.COLOURS[1], linewidth=1, linestyle=":")
        charts.mark_point(axes, at.x, at.y, f"the plan: {chosen} workers, {at.y:.1%}")
    axes.set(xlabel="workers on, in the order in which the plan takes them", ylabel="share of time the learner trains")
    axes.set_xlim(0, max(point.x for point in curve) * 1.25)
    charts.share_axis(axes)
    charts.integer_ticks(axes.xaxis)
    charts.save(figure, path)


def cost_against_broadcast(path: Path, series: Mapping[str, Sequence[Point]], subtitle: str) -> None:
    """Draw the $/step of each plan against its T_bcast in seconds; a few points carry their names, many do not."""
    figure, axes = charts.new_chart("Cost of a learner step against the time of a broadcast", subtitle)
    total = sum(len(points) for points in series.values())
    for number, (name, points) in enumerate(series.items()):
        feasible = [point for point in points if point.y is not None]
        style = charts.series_style(number, len(series)) | {"linestyle": "none"}
        label = name if feasible else f"{name}: infeasible"
        axes.plot([point.x for point in feasible], [point.y for point in feasible], label=label, **style)
        for point in feasible if total <= _NAMED_MAX else ():
            axes.annotate(point.name, (point.x, point.y), xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set(xlabel="T_bcast, s", ylabel="workers and traffic, $/step")
    found = [(point.x, point.y) for points in series.values() for point in points if point.y is not None]
    charts.scale_to(axes.xaxis, [x for x, _ in found])
    charts.scale_to(axes.yaxis, [y for _, y in found])
    if len(series) > 1:
        charts.add_legend(figure)
    charts.save(figure, path)


def timeline(path: Path, moments: Sequence[Moment], subtitle: str) -> None:
    """Draw workers on, $/h and learner utilisation over the hours of a replay."""
    hours = [moment.at_s / 3600.0 for moment in moments]
    panels = (
        ("workers on", [float(moment.workers_on) for moment in moments]),
        ("workers, $/h", [moment.usd_per_hour for moment in moments]),
        ("learner trains", [moment.utilisation for moment in moments]),
    )
    figure, all_axes = charts.new_panels("Replay of the plan", subtitle, len(panels))
    for axes, colour, (label, values) in zip(all_axes, charts.COLOURS, panels, strict=False):
        axes.step(hours, values, where="pre", color=colour)
        axes.set_ylabel(label)
        axes.set_ylim(0, max(values) * 1.1 or 1.0)
        axes.set_xlim(0, hours[-1] or 1.0)
    charts.integer_ticks(all_axes[0].yaxis)
    charts.share_axis(all_axes[2])
    all_axes[-1].set_xlabel("hours since the start")
    charts.save(figure, path)
