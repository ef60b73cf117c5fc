"""Compare plans for every combination of staleness limits, uplinks, topologies and other options."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from capacity.planner.plans import Plan
from capacity.questions.plan_json import totals_of
from capacity.reports.plots import Point
from capacity.reports.tables import Cell, Column, Sheet, shown
from rollcast.runtime.errors import ConfigError

VARIANTS_MAX = 400

_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")

Values = dict[str, str | int | float]
"""One combination of options: option -> value."""

_HEADINGS = {
    "staleness": "S",
    "kappa": "kappa",
    "uplink": "uplink",
    "topology": "topology",
    "encoding": "encoding",
    "model": "model",
    "headroom": "headroom",
    "t_train": "T_train s",
}
_WHOLE = ("staleness", "kappa")
_NUMBERS = ("headroom", "t_train")


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination and its plan."""

    values: Values
    plan: Plan


def listed(option: str, text: str) -> list[str | int | float]:
    """Parse ``2..16``, ``2..16..2`` or ``0.5,1,2.5`` as values; a value named twice counts once.

    Raises:
        ConfigError: there is no value, or one is not of the option's type.
    """
    values: list[str | int | float] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _RANGE.fullmatch(part) if option in _WHOLE else None
        if found is not None:
            values += range(int(found[1]), int(found[2]) + 1, max(1, int(found[3] or 1)))
            continue
        try:
            values.append(int(part) if option in _WHOLE else float(part) if option in _NUMBERS else part)
        except ValueError:
            raise ConfigError(f"--{option} has {part!r}", fix="write it as 2..16, 2..16..2, or 0.5,1,2.5") from None
    if not values:
        raise ConfigError(f"--{option} has no value", fix="write it as 2..16, 2..16..2, or 0.5,1,2.5")
    return list(dict.fromkeys(values))


def combinations(swept: Mapping[str, Sequence[str | int | float]]) -> list[Values]:
    """Return every combination; the last option changes fastest.

    Raises:
        ConfigError: there are more than VARIANTS_MAX.
    """
    every = [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]
    if len(every) > VARIANTS_MAX:
        raise ConfigError(
            f"these are {len(every)} combinations, more than {VARIANTS_MAX}", fix="give fewer values, or fewer options"
        )
    return every


def variants(every: Sequence[Values], plan_for: Callable[[Values], Plan]) -> list[Variant]:
    """Plan every combination with ``plan_for``."""
    return [Variant(values, plan_for(values)) for values in every]


def cheapest(found: Sequence[Variant]) -> Variant | None:
    """Return the feasible variant with the lowest $/step; None if none is feasible."""
    feasible = [variant for variant in found if variant.plan.feasible]
    return min(feasible, key=lambda variant: totals_of(variant.plan).usd_per_step, default=None)


def variant_sheet(found: Sequence[Variant]) -> Sheet:
    """Return a table with a row per variant and a tick on the one with the cheapest step."""
    keys = list(found[0].values)
    columns = (
        Column("cheapest", "best"),
        *(Column(key, _HEADINGS[key]) for key in keys),
        Column("chosen", "workers on"),
        Column("usd_per_hour", "$/h", 2),
        Column("usd_per_step", "$/step", 4),
        Column("t_bcast_s", "T_bcast s", 1),
        Column("staleness_needed", "S needed"),
        Column("utilisation_percent", "utilisation %", 1),
        Column("infeasible", "infeasible because", prose=True),
    )
    best = cheapest(found)
    rows = tuple(_cells(variant, keys, variant is best) for variant in found)
    feasible = sum(variant.plan.feasible for variant in found)
    lines = (f"{feasible} of {len(found)} are feasible" + (f"; cheapest: {_name(best)}" if best is not None else ""),)
    return Sheet("what if", columns, rows, marked=0, lines=lines)


def cost_curves(found: Sequence[Variant]) -> dict[str, list[Point]]:
    """Return $/h by S: a curve for each combination of the other options."""
    return _curves(
        found,
        apart="staleness",
        point=lambda variant: Point(
            float(variant.values["staleness"]), variant.plan.usd_per_hour if variant.plan.feasible else None
        ),
    )


def broadcast_curves(found: Sequence[Variant]) -> dict[str, list[Point]]:
    """Return $/step by ascending T_bcast: along the last option, a curve for each combination of the others."""
    apart = list(found[0].values)[-1]

    def point(variant: Variant) -> Point:
        totals = totals_of(variant.plan)
        name = _in_words(apart, variant.values[apart])
        return Point(totals.t_bcast_s, totals.usd_per_step if variant.plan.feasible else None, name)

    curves = _curves(found, apart=apart, point=point)
    return {name: sorted(points, key=lambda one: one.x) for name, points in curves.items()}


def _curves(found: Sequence[Variant], apart: str, point: Callable[[Variant], Point]) -> dict[str, list[Point]]:
    curves: dict[str, list[Point]] = {}
    for variant in found:
        others = ", ".join(_in_words(key, value) for key, value in variant.values.items() if key != apart)
        curves.setdefault(others or "cheapest set", []).append(point(variant))
    return curves


def _cells(variant: Variant, keys: Sequence[str], best: bool) -> tuple[Cell, ...]:
    totals, infeasible = totals_of(variant.plan), variant.plan.infeasible
    swept: tuple[Cell, ...] = tuple(
        shown(value, 2) if isinstance(value := variant.values[key], float) else value for key in keys
    )
    if infeasible is not None:
        return (best, *swept, None, None, None, None, None, None, infeasible.what)
    return (
        best,
        *swept,
        totals.chosen,
        totals.usd_per_hour,
        totals.usd_per_step,
        totals.t_bcast_s,
        totals.staleness_needed,
        totals.utilisation * 100,
        None,
    )


def _name(variant: Variant) -> str:
    return ", ".join(_in_words(key, value) for key, value in variant.values.items())


def _in_words(key: str, value: str | int | float) -> str:
    """Return one option's value in words, with its unit."""
    match key:
        case "topology" | "encoding" | "model":
            return str(value)
        case "uplink":
            return f"uplink {value}"
        case "t_train":
            return f"T_train {value:g} s"
        case _:
            return f"{_HEADINGS[key]} = {value}"
