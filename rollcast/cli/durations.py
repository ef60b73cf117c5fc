"""Parse and format durations as people write them: 90s, 15m, 2h, 1d12h."""

from __future__ import annotations

import re

from rollcast.runtime.errors import ConfigError

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PARTS = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def seconds_of(text: str) -> float:
    """Return the seconds in a duration.

    Raises:
        ConfigError: the text is not a duration, or the duration is 0.
    """
    written = text.strip().lower().replace(" ", "")
    total = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(written))
    if not _PARTS.fullmatch(written) or total <= 0.0:
        raise ConfigError(f"{text!r} is not a duration", fix="write numbers with units, such as 90s, 15m, 2h or 1d12h")
    return total


def in_words(seconds: float) -> str:
    """Return a duration in its two largest units: `1d 12h`, `3m 5s`."""
    left = max(0, round(seconds))
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"
