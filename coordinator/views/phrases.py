"""Format durations and names for use in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.core.members.membership import Member


def duration(seconds: float) -> str:
    """Return a duration in suitable units: "0.4 s", "12 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole // 60, "min", whole % 60, "s")
    if whole < 86400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two(whole // 86400, "d", whole % 86400 // 3600, "h")


def _two(more: int, unit: str, less: int, small_unit: str) -> str:
    return f"{more} {unit}" + (f" {less} {small_unit}" if less else "")


def members_in_words(members: Sequence[Member]) -> str:
    """Return subject and verb of a sentence about members: "peer-1 is", "3 workers are"."""
    return f"{members[0].name} is" if len(members) == 1 else f"{len(members)} workers are"


def sentence(waiting_for: str, since_s: float, following: str) -> str:
    """Return how long a run has waited for what, and what happens next; without a wait, only what happens next."""
    if not waiting_for:
        return f"{following[0].upper()}{following[1:]}." if following else "The run waits for nothing."
    return f"The run has waited {duration(since_s)} for {waiting_for}. Next: {following}."
