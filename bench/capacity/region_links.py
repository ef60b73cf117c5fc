"""Read the links between ten AWS regions (DT-FM). Origin: data/dtfm."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capacity.catalogue.csv_tables import read_rows

BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True, eq=False)
class LinkMatrix:
    """The links between regions, both directions alike.

    Args:
        regions: names, in the order of rows and columns.
        bytes_per_second: rates, shape [regions, regions], float64; inf on the diagonal.
        delay_s: one-way delays, shape [regions, regions]; 0 on the diagonal.
    """

    regions: tuple[str, ...]
    bytes_per_second: NDArray[np.float64]
    delay_s: NDArray[np.float64]


@functools.cache
def ten_regions() -> LinkMatrix:
    """Return the links between ten AWS regions, Oregon to Ireland."""
    rows = read_rows("dtfm", "aws_10_regions_delay_bandwidth.csv")
    names = tuple(dict.fromkeys(name for row in rows for name in (row["a"], row["b"])))
    index = {name: number for number, name in enumerate(names)}
    rates, delays = np.full((len(names), len(names)), np.inf), np.zeros((len(names), len(names)))
    for row in rows:
        a, b = index[row["a"]], index[row["b"]]
        rates[a, b] = rates[b, a] = float(row["gbps"]) * BYTES_PER_GBIT
        delays[a, b] = delays[b, a] = float(row["delay_ms"]) / 1000.0
    return LinkMatrix(names, rates, delays)
