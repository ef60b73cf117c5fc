"""Compute how long each peer went without a version that it could have had, from times only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """The time (seconds) at which a version was published, or held."""

    at_s: float
    version: int


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, in seconds of one clock."""

    from_s: float
    to_s: float

    @property
    def seconds(self) -> float:
        """Return the length of the span in seconds."""
        return self.to_s - self.from_s


def stalls(published: Sequence[Moment], held: Sequence[Moment], up: Span) -> list[Span]:
    """Return the times within ``up`` in which a peer lacked a published version and completed none.

    Each ends with the next version that the peer holds, or with ``up``. A version held before ``up`` counts as held.

    Args:
        published: publications in order of time and version.
        held: versions that one peer completed, in order of time.
    """
    newest = max((moment.version for moment in held if moment.at_s <= up.from_s), default=-1)
    found, from_s = [], up.from_s
    ends = [moment for moment in held if up.from_s < moment.at_s < up.to_s]
    for moment in [*ends, Moment(up.to_s, newest)]:
        missing_s = _first_above(published, newest)
        if missing_s is not None and max(from_s, missing_s) < moment.at_s:
            found.append(Span(max(from_s, missing_s), moment.at_s))
        newest, from_s = max(newest, moment.version), moment.at_s
    return found


def delays_s(published: Sequence[Moment], held: Sequence[Moment], up: Span) -> list[float]:
    """Return the seconds from each publication within ``up`` until the peer held it or a newer one, where it did."""
    delays = []
    for moment in published:
        if not up.from_s <= moment.at_s < up.to_s:
            continue
        at_s = next((one.at_s for one in held if one.version >= moment.version and one.at_s <= up.to_s), None)
        if at_s is not None:
            delays.append(max(0.0, at_s - moment.at_s))
    return delays


def _first_above(published: Sequence[Moment], version: int) -> float | None:
    """Return the time at which the first version above this one was published, or None if there is none."""
    index = bisect_right(published, version, key=lambda moment: moment.version)
    return published[index].at_s if index < len(published) else None
