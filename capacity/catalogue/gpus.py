"""Look up GPUs and the figures of their data sheets. Origin: data/gpus/README.md."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from capacity.catalogue.csv_tables import read_rows
from capacity.model.roofline import Gpu

FOLDER = "gpus"
GIB = 1 << 30
_MEMORY_TOLERANCE = 0.15  # drivers, vendors and shops round memory differently


@functools.cache
def gpus() -> Mapping[str, Gpu]:
    """Return every GPU of the catalogue by its name."""
    return {
        row["name"]: Gpu(
            name=row["name"],
            memory_bytes=float(row["memory_bytes"]),
            bandwidth_bytes_per_second=float(row["bandwidth_bytes_per_second"]),
            flops_per_second=float(row["bf16_flops_per_second"]),
        )
        for row in read_rows(FOLDER, "gpus.csv")
    }


def gpu_named(name: str, memory_gib: float | None = None) -> Gpu | None:
    """Return the GPU with this name or alias, whatever the case; None if there is none.

    Args:
        memory_gib: memory that the GPU must have within 15 %: an A100 with 40 GB is none with 80. None or 0: any.
    """
    found = gpus().get(_names().get(name.strip().lower(), ""))
    if found is None or not memory_gib:
        return found
    return found if abs(memory_gib * GIB / found.memory_bytes - 1.0) <= _MEMORY_TOLERANCE else None


@functools.cache
def _names() -> Mapping[str, str]:
    names: dict[str, str] = {}
    for row in read_rows(FOLDER, "gpus.csv"):
        names[row["name"]] = row["name"]
        names.update(dict.fromkeys(filter(None, row["aliases"].split("|")), row["name"]))
    return names
