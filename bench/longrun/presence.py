"""Record when each peer was present: from its first session after a start until it was killed, frozen or left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.longrun.stalls import Span


@dataclass(slots=True)
class Presence:
    """The events of one peer's presence, in order of time (seconds)."""

    _starts_s: list[float] = field(default_factory=list)
    _thaws_s: list[float] = field(default_factory=list)
    _ends_s: list[float] = field(default_factory=list)

    def started(self, now_s: float) -> None:
        """Record the start of the peer's process; the peer is present from its first session on."""
        self._starts_s.append(now_s)

    def thawed(self, now_s: float) -> None:
        """Record that a frozen peer runs again; it is present at once."""
        self._thaws_s.append(now_s)

    def gone(self, now_s: float) -> None:
        """Record that the peer was killed, frozen or asked to leave, or that it ended by itself."""
        self._ends_s.append(now_s)

    def spans(self, opened_s: Sequence[float], end_s: float) -> list[Span]:
        """Return the spans in which the peer was present.

        Args:
            opened_s: times at which the peer opened sessions.
            end_s: end of the run.
        """
        ends = [*self._ends_s, end_s]
        found = []
        for start_s in self._starts_s:
            found += _until_next([at_s for at_s in opened_s if at_s >= start_s][:1], start_s, ends)
        for thaw_s in self._thaws_s:
            found += _until_next([thaw_s], thaw_s, ends)
        return sorted(found, key=lambda span: span.from_s)


def _until_next(begins_s: Sequence[float], after_s: float, ends_s: Sequence[float]) -> list[Span]:
    """Return a span from each begin to the first end at or after ``after_s``; none for a begin after that end."""
    end_s = min(at_s for at_s in ends_s if at_s >= after_s)
    return [Span(begin_s, end_s) for begin_s in begins_s if begin_s < end_s]
