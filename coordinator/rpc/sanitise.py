"""Limit what peers send before it is used: numbers to their range, texts to printable characters."""

from __future__ import annotations

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits


def counter(value: int) -> int:
    """Return an id or a count.

    Raises:
        MalformedMessage: it is larger than anything that is stored.
    """
    if value > limits.COUNTER_MAX:
        raise MalformedMessage("a counter is out of range")
    return value


def rate(value: float) -> float:
    """Return a rate per second; 0, meaning unknown, if it is negative, too large or not a number."""
    return value if 0.0 <= value < limits.RATE_MAX else 0.0


def duration_s(value: float) -> float:
    """Return a duration in seconds; 0, meaning unknown, if it is negative, too large or not a number."""
    return value if 0.0 <= value < limits.DURATION_S_MAX else 0.0


def share(value: float) -> float:
    """Return a share between 0 and 1; 0, meaning unknown, if it is out of range or not a number."""
    return value if 0.0 <= value <= 1.0 else 0.0


def text(value: str, length_max: int = limits.TEXT_LENGTH_MAX) -> str:
    """Return a text for people only: cut to ``length_max`` characters, without control characters."""
    cut = value[:length_max]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)
