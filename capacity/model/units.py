"""Define the units that people read and write; the formulas compute in bytes, bytes per second, seconds and dollars.

Prices of traffic are per 1 GB = 1e9 bytes, bandwidths in Mbit/s = 1e6 bits per second.
"""

from __future__ import annotations

BYTES_PER_GB = 1e9
BYTES_PER_MBIT = 1e6 / 8
SECONDS_PER_HOUR = 3600.0


def bandwidth(bytes_per_second: float, digits: int = 4) -> str:
    """Return a rate in words, in Mbit/s."""
    return f"{bytes_per_second / BYTES_PER_MBIT:,.{digits}g} Mbit/s"
