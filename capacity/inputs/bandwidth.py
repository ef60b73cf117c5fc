"""Parse bandwidths. Everything that people read or write is in Mbit/s, unless a value names another unit."""

from __future__ import annotations

import math
import re

#: Mbit/s of one unit, by its name without "/s", "ps" or "per second". Case matters where b and B, m and M differ.
_MBIT_PER_UNIT = {
    "kbit": 1e-3,
    "Kbit": 1e-3,
    "Mbit": 1.0,
    "Gbit": 1e3,
    "kb": 1e-3,
    "Mb": 1.0,
    "Gb": 1e3,
    "kB": 8e-3,
    "MB": 8.0,
    "GB": 8e3,
    "MiB": 8.0 * 1.048576,
    "GiB": 8.0 * 1073.741824,
}
_VALUE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*?)(?:/s|ps)?\s*")
MBIT_PER_SECOND_MAX = 1e7  # 10 Tbit/s


def mbit_per_second(text: str) -> float:
    """Return the Mbit/s that a text names: ``1000``, ``1000Mbit/s``, ``2.5 Gbit/s``, ``125 MB/s``, ``1Gbps``.

    Raises:
        ValueError: it is no positive number up to 10 Tbit/s, or the unit is unknown.
    """
    found = _VALUE.fullmatch(text)
    factor = _MBIT_PER_UNIT.get(found[2] or "Mbit") if found else None
    if found is None or factor is None:
        raise ValueError(f"{text!r} is no bandwidth: write for example 1000Mbit/s, 2.5Gbit/s or 125MB/s")
    value = float(found[1]) * factor
    if not 0 < value <= MBIT_PER_SECOND_MAX or not math.isfinite(value):
        raise ValueError(f"{text!r} is out of range: more than 0 and at most {MBIT_PER_SECOND_MAX:g} Mbit/s")
    return value
