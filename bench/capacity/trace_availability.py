"""Read the number of spot instances alive over time: 11 hours of AWS p3. Origin: data/parcae."""

from __future__ import annotations

import functools

from capacity.catalogue.csv_tables import read_rows

FOLDER = "parcae"


@functools.cache
def spot_instances() -> tuple[tuple[float, int], ...]:
    """Return (seconds since the start, instances alive from then on), ascending; a moment's last count is its row."""
    alive: dict[float, int] = {}
    for row in read_rows(FOLDER, "p3.csv", columns=("ms", "instances")):
        alive[float(row["ms"]) / 1000.0] = int(row["instances"])
    return tuple(sorted(alive.items()))
