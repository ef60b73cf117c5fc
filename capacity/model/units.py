"""Define the units that prices and rates are quoted in; prices of traffic are per 1 GB = 1e9 bytes."""

from __future__ import annotations

BYTES_PER_GB = 1e9
SECONDS_PER_HOUR = 3600.0
