"""What peers write, before it is used: numbers in range, texts that cannot draw on a screen."""

from __future__ import annotations

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits


def counter(value: int) -> int:
    """An id or a count.

    Raises:
        MalformedMessage: larger than anything we store.
    """
    if value > limits.COUNTER_MAX:
        raise MalformedMessage("a counter is out of range")
    return value


def rate(value: float) -> float:
    """Something a second; 0, as if it were not known, where it is negative, absurd or no number."""
    return value if 0.0 <= value < limits.RATE_MAX else 0.0


def duration_s(value: float) -> float:
    """Seconds; 0, as if they were not known, where they are negative, absurd or no number."""
    return value if 0.0 <= value < limits.DURATION_S_MAX else 0.0


def text(value: str, length_max: int = limits.TEXT_LENGTH_MAX) -> str:
    """Shown to people only: cut, and without control characters."""
    cut = value[:length_max]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)
