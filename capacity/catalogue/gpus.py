"""Look up GPUs and the figures of their data sheets. Origin: data/gpus/README.md."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from capacity.catalogue.csv_tables import read_rows
from capacity.model.roofline import Gpu

FOLDER = "gpus"
GIB = 1 << 30
_MEMORY_TOLERANCE = 0.15  # drivers, vendors and shops round memory differently
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_MEMORY = re.compile(r"\b(\d+) ?gi?b\b")
_SXM = re.compile(r"sxm\d?")
#: Words that do not tell two GPUs apart.
_BRANDS = frozenset(
    ("nvidia", "geforce", "tesla", "gpu", "graphics", "corporation", "generation", "edition", "blackwell")
)
_MEMORY_KINDS = frozenset(("hbm2", "hbm2e", "hbm3e"))


@functools.cache
def gpus() -> Mapping[str, Gpu]:
    """Return every GPU of the catalogue by its name."""
    return {
        row["name"]: Gpu(
            name=row["name"],
            memory_bytes=float(row["memory_bytes"]),
            bandwidth_bytes_per_second=float(row["bandwidth_bytes_per_second"]),
            flops_per_second=float(row["bf16_flops_per_second"]),
            links="nvlink" if row["links"] == "nvlink" else "pcie",
        )
        for row in read_rows(FOLDER, "gpus.csv")
    }


def gpu_named(name: str, memory_gib: float | None = None) -> Gpu | None:
    """Return the GPU that a name means, as catalogues, nvidia-smi, vast and runpod write it; None if there is none.

    ``NVIDIA GeForce RTX 4090``, ``RTX_4090`` and ``rtx-4090`` are one GPU; ``NVIDIA A100-SXM4-40GB`` is the A100 SXM
    with that memory. Words that change the chip (Ti, Super, Laptop, D) count.

    Args:
        memory_gib: memory that the GPU must have within 15 %, if the name states none. None or 0: any.
    """
    key, stated_gib = _key(name)
    memory_gib = stated_gib or memory_gib
    for known in _names().get(key, ()):
        found = gpus()[known]
        if not memory_gib or abs(memory_gib * GIB / found.memory_bytes - 1.0) <= _MEMORY_TOLERANCE:
            return found
    return None


def _key(name: str) -> tuple[str, float | None]:
    """Return the words of a name that tell GPUs apart, joined, and the memory in GiB that it states, if any."""
    text = _SEPARATORS.sub(" ", name.lower())
    memory = _MEMORY.search(text)
    words = _MEMORY.sub(" ", text).split()
    key = "".join("sxm" if _SXM.fullmatch(word) else word for word in words if word not in _BRANDS | _MEMORY_KINDS)
    return key, float(memory[1]) if memory else None


@functools.cache
def _names() -> Mapping[str, tuple[str, ...]]:
    """Return the GPUs of each key; a variant with another memory follows the one that a bare name means."""
    names: dict[str, tuple[str, ...]] = {}
    for row in read_rows(FOLDER, "gpus.csv"):
        for known in (row["name"], *filter(None, row["aliases"].split("|"))):
            key, _ = _key(known)
            names[key] = (*(one for one in names.get(key, ()) if one != row["name"]), row["name"])
    return names
