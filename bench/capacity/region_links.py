"""Read the links between ten AWS regions (DT-FM, 2022). Origin and licence: data/dtfm/README.md."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FILE = Path(__file__).parent / "data" / "dtfm" / "aws_10_regions_delay_bandwidth.csv"
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
    rows = list(csv.DictReader(_FILE.read_text(encoding="utf-8").splitlines()))
    names = tuple(dict.fromkeys(name for row in rows for name in (row["a"], row["b"])))
    index = {name: number for number, name in enumerate(names)}
    rates, delays = np.full((len(names), len(names)), np.inf), np.zeros((len(names), len(names)))
    for row in rows:
        a, b = index[row["a"]], index[row["b"]]
        rates[a, b] = rates[b, a] = float(row["gbps"]) * BYTES_PER_GBIT
        delays[a, b] = delays[b, a] = float(row["delay_ms"]) / 1000.0
    return LinkMatrix(names, rates, delays)
