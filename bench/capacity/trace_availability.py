"""Read the number of spot instances alive over time, as others recorded it on AWS and Google Cloud.

Origins and licences: data/parcae/README.md and data/bamboo/README.md.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from pathlib import Path

_DATA = Path(__file__).parent / "data"
FILES: Mapping[str, str] = {
    "p3": "parcae/p3.csv",
    "g4dn": "bamboo/g4dn.csv",
    "gcp-v100": "bamboo/gcp-v100.csv",
    "gcp-a100": "bamboo/gcp-a100.csv",
}
"""File of each record, by name."""


@functools.cache
def spot_instances(name: str) -> tuple[tuple[float, int], ...]:
    """Return (seconds since the start, instances alive from then on), ascending; a moment's last count is its row."""
    rows = csv.reader((_DATA / FILES[name]).read_text(encoding="utf-8").splitlines())
    alive = {float(milliseconds) / 1000.0: int(instances) for milliseconds, instances in rows}
    return tuple(sorted(alive.items()))
