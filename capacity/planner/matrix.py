"""Hold the rows of a split's programme as sparse matrices, all of them ``a x <= b``.

Columns besides the workers': the origin's copies; the copies that the workers of one price level of egress pass on,
for each level above zero (a relay whose bytes are free enters the relay row directly); and, with region rows, the total
rate and each region's rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from capacity.planner.columns import Floats
from capacity.planner.programme import Programme

Sparse = Any  # scipy.sparse has no types


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Shapes: workers [rows, n], extra [rows, extra], limit and unit [rows], the others as their columns.

    Args:
        keys: (row, subject) of each row; rows of one key and level sums carry the level's or region's name.
        unit: a row was divided by it: its dual / unit is per unit of what the row is about.
    """

    programme: Programme
    workers: Sparse
    extra: Sparse
    limit: Floats
    unit: Floats
    keys: tuple[tuple[str, str], ...]
    cost: Floats
    lower: Floats
    extra_cost: Floats
    extra_lower: Floats
    extra_upper: Floats


@dataclass(slots=True)
class _Builder:
    """A builder that collects rows and extra columns."""

    workers: list[tuple[int, Any, Any]] = field(default_factory=list)
    extra: list[tuple[int, int, float]] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    unit: list[float] = field(default_factory=list)
    keys: list[tuple[str, str]] = field(default_factory=list)
    columns: list[tuple[float, float, float]] = field(default_factory=list)

    def column(self, cost: float, lower: float, upper: float) -> int:
        self.columns.append((cost, lower, upper))
        return len(self.columns) - 1

    def row(
        self, key: tuple[str, str], places: Any, values: Any, extra: dict[int, float], limit: float, unit: float = 1.0
    ) -> None:
        number = len(self.keys)
        self.workers.append((number, places, values / unit))
        self.extra.extend((number, column, value / unit) for column, value in extra.items())
        self.limit.append(limit / unit)
        self.unit.append(unit)
        self.keys.append(key)


def matrix_of(programme: Programme) -> Matrix:
    """Return all rows of the programme over all of its workers."""
    builder = _Builder()
    every = np.arange(len(programme.columns))
    builder.row(("rate", ""), every, -programme.useful, {}, -programme.rate_bought, programme.rate_bought)
    _add_relaying(builder, programme)
    if programme.demand.chance_z > 0:
        _add_chance(builder, programme)
    if programme.demand.share_without_a_region > 0:
        _add_regions(builder, programme)
    rows, columns = len(builder.keys), len(builder.columns)
    number, place, value = (np.array(part) for part in zip(*builder.extra, strict=True)) if builder.extra else [[]] * 3
    sides = np.array(builder.columns, np.float64).reshape(columns, 3)
    return Matrix(
        programme=programme,
        workers=_stacked(builder.workers, (rows, every.size)),
        extra=_sparse(value, number, place, (rows, columns)),
        limit=np.array(builder.limit),
        unit=np.array(builder.unit),
        keys=tuple(builder.keys),
        cost=programme.cost,
        lower=programme.lower,
        extra_cost=sides[:, 0],
        extra_lower=sides[:, 1],
        extra_upper=sides[:, 2],
    )


def _stacked(rows: list[tuple[int, Any, Any]], shape: tuple[int, int]) -> Sparse:
    number = np.concatenate([np.full(len(places), row) for row, places, _ in rows])
    place = np.concatenate([places for _, places, _ in rows])
    value = np.concatenate([values for _, _, values in rows])
    return _sparse(value, number, place, shape)


def _sparse(value: Any, number: Any, place: Any, shape: tuple[int, int]) -> Sparse:
    from scipy.sparse import coo_matrix, csc_matrix  # takes a while to load: see capacity.planner.linear

    return csc_matrix(coo_matrix((value, (number, place)), shape=shape))


def _add_relaying(builder: _Builder, programme: Programme) -> None:
    """Add the relay row and, per price level of egress, the row of the copies that its chosen workers can pass on."""
    origin = builder.column(programme.origin_copy_usd, 1.0, programme.origin_feeds)
    free = programme.level_copy_usd[programme.columns.level] == 0
    taken = {origin: -1.0}
    levels = []
    for level, copy_usd in enumerate(programme.level_copy_usd):
        places = np.flatnonzero((programme.columns.level == level) & (programme.feeds > 0) & (programme.upper > 0))
        if copy_usd > 0 and places.size:
            column = builder.column(float(copy_usd), 0.0, float(programme.feeds[places].sum()))
            taken[column] = -1.0
            levels.append((level, places, column))
    every = np.arange(len(programme.columns))
    builder.row(("relay", ""), every, 1.0 - np.where(free, programme.feeds, 0.0), taken, 0.0)
    for level, places, column in levels:
        builder.row(("level", str(level)), places, -programme.feeds[places], {column: 1.0}, 0.0)


def _add_chance(builder: _Builder, programme: Programme) -> None:
    """Add the chance row's tangent at ``linearised_at``: sets that hold it are tried, and judged by the exact row.

    Of independent workers the tangent lies above the square root, so that its sets hold the exact row.
    """
    z, every = programme.demand.chance_z, np.arange(len(programme.columns))
    at = np.zeros(every.size) if programme.linearised_at is None else programme.linearised_at
    slopes = z * programme.deviation_slopes(at)
    limit = programme.rate_bought + z * programme.deviation(at) - float(slopes @ at)
    builder.row(("chance", ""), every, slopes - programme.useful, {}, -limit, programme.rate_bought)


def _add_regions(builder: _Builder, programme: Programme) -> None:
    """Add total - region >= share with one variable for the total and one per region: so the rows stay sparse."""
    unit = programme.rate_bought
    all_useful = float(programme.useful.sum())
    total = builder.column(0.0, 0.0, all_useful)
    every = np.arange(len(programme.columns))
    builder.row(("total", ""), every, -programme.useful, {total: 1.0}, 0.0, unit)
    left = programme.demand.share_without_a_region * (programme.rate_needed or 0.0)
    for number, region in enumerate(programme.columns.regions):
        places = np.flatnonzero(programme.columns.region == number)
        here = builder.column(0.0, 0.0, all_useful)
        builder.row(("sum", region), places, programme.useful[places], {here: -1.0}, 0.0, unit)
        builder.row(("region", region), places[:0], programme.useful[:0], {here: 1.0, total: -1.0}, -left, unit)
