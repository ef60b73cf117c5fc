"""Draw charts as SVG without scripts: curves over steps, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 26
_TICKS = 4
_SPIKE = 2.0  # beyond 96 % of all values by so many times their range: not drawn to scale


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over steps; None if a step has none. ``kind`` is a class of the style sheet."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    kind: str = "series-1"

    @property
    def known(self) -> list[tuple[float, float]]:
        """Return the points whose values are known and finite."""
        return [(x, y) for x, y in zip(self.xs, self.ys, strict=True) if y is not None and math.isfinite(y)]


def curves(title: str, drawn: Sequence[Curve], *, x_name: str = "learner step", least: float | None = None) -> str:
    """Return an SVG of several curves; empty if there is nothing to draw."""
    shown = [curve for curve in drawn if curve.known]
    if not shown:
        return ""
    points = [point for curve in shown for point in curve.known]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high, cut = _range([y for _, y in points])
    ticks = nice_ticks(y_low if least is None else min(least, y_low), y_high)
    low, high = ticks[0], ticks[-1]

    def place(x: float, y: float) -> str:
        across = (x - x_low) / (x_high - x_low or 1.0)
        up = min(1.0, max(0.0, (y - low) / (high - low or 1.0)))
        return (
            f"{_LEFT + across * (WIDTH - _LEFT - _RIGHT):.1f},{HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM):.1f}"
        )

    parts = [*_grid(ticks, low, high), *_steps(x_low, x_high, x_name)]
    for curve in shown:
        path = " ".join(place(x, y) for x, y in curve.known)
        last_x, last_y = curve.known[-1]
        label = f"{curve.name}: {number(last_y)} at {x_name} {number(last_x)}"
        if len(curve.known) == 1:
            x, y = place(last_x, last_y).split(",")
            parts.append(
                f'<circle class="{curve.kind}" cx="{x}" cy="{y}" r="3"><title>{escape(label)}</title></circle>'
            )
        else:
            parts.append(f'<polyline class="{curve.kind}" points="{path}"><title>{escape(label)}</title></polyline>')
    legend = "".join(f'<li class="{one.kind}">{escape(one.name)}</li>' for one in shown) if len(shown) > 1 else ""
    legend += f'<li class="cut">{cut} beyond the scale</li>' if cut else ""
    description = "; ".join(f"{one.name} from {number(one.known[0][1])} to {number(one.known[-1][1])}" for one in shown)
    return _figure(title, description, parts, legend)


def bars(title: str, values: Mapping[str, float], *, limit: str = "", limit_name: str = "") -> str:
    """Return an SVG with one bar per key, in order, and a line after the bar of ``limit``; empty without values."""
    total = sum(values.values())
    if not total:
        return ""
    most, slot = max(values.values()), (WIDTH - 2 * _RIGHT) / len(values)
    parts = []
    for index, (key, value) in enumerate(values.items()):
        tall = value / most * (HEIGHT - _TOP - _BOTTOM - 16)
        x, middle = _RIGHT + slot * (index + 0.15), _RIGHT + slot * (index + 0.5)
        top = HEIGHT - _BOTTOM - tall
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{top:.1f}" width="{slot * 0.7:.1f}" height="{tall:.1f}" rx="2"/>'
        )
        parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 9}" text-anchor="middle">{escape(key)}</text>')
        parts.append(f'<text x="{middle:.1f}" y="{top - 5:.1f}" text-anchor="middle">{value / total:.0%}</text>')
        if key == limit:
            edge = _RIGHT + slot * (index + 1)
            parts.append(f'<line class="limit" x1="{edge:.1f}" x2="{edge:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
            anchor = "end" if index >= len(values) / 2 else "start"
            beside = edge - 5 if anchor == "end" else edge + 5
            parts.append(f'<text x="{beside:.1f}" y="{_TOP + 8}" text-anchor="{anchor}">{escape(limit_name)}</text>')
    description = ", ".join(f"{key}: {value / total:.1%}" for key, value in values.items())
    return _figure(title, description, parts, "")


def _range(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the range to draw, and the number of values beyond it: single spikes must not flatten the rest."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    room = _SPIKE * (high - low or abs(high))
    least = next(value for value in ordered if value >= low - room)
    most = next(value for value in reversed(ordered) if value <= high + room)
    return least, most, sum(not least <= value <= most for value in values)


def nice_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from at most ``low`` to at least ``high``."""
    least = 1e-9 * max(abs(low), abs(high))  # of a smaller span the ticks would be one number
    span = high - low if high - low > least else abs(high) or 1.0
    rough = span / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [tick * step for tick in range(first, last + 1)]


def number(value: float) -> str:
    """Format a number with three significant digits, and with thousands separators."""
    if value == 0 or 1e-3 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.1e}"


def _grid(ticks: Sequence[float], low: float, high: float) -> list[str]:
    parts = []
    for tick in ticks:
        y = HEIGHT - _BOTTOM - (tick - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    return parts


def _steps(low: float, high: float, name: str) -> list[str]:
    parts = []
    for index, anchor in enumerate(("start", "middle", "end")):
        x = _LEFT + index / 2 * (WIDTH - _LEFT - _RIGHT)
        text = number(round(low + index / 2 * (high - low)))
        text = f"{name} {text}" if anchor == "end" else text
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{escape(text)}</text>')
    return parts


def _figure(title: str, description: str, parts: Sequence[str], legend: str) -> str:
    label = escape(f"{title}: {description}")
    return (
        f'<figure class="card"><figcaption><h3>{escape(title)}</h3>'
        + (f'<ul class="legend">{legend}</ul>' if legend else "")
        + f'</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        + "".join(parts)
        + "</svg></figure>"
    )
