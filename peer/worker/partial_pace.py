"""When running rollouts are told of, and how many at once: a session has a budget of messages. Pure."""

from __future__ import annotations

PARTIALS_AT_ONCE_MAX = 256  # partial results sent together: well within the session's outbox
PARTIALS_PER_SECOND_MAX = 50.0  # large batches are told of more seldom


class PartialPace:
    """Args: interval_s: between two messages; 0: none are sent."""

    def __init__(self, interval_s: float = 0.0, now: float = 0.0) -> None:
        self._interval_s = interval_s
        self._due_s = now + interval_s

    def began(self, now: float) -> None:
        """A batch began: nothing of it is worth telling yet."""
        self._due_s = now + self._interval_s

    def is_due(self, now: float) -> bool:
        """Whether partial results should be sent."""
        return self._interval_s > 0.0 and now >= self._due_s

    def sent(self, count: int, now: float) -> None:
        """So many were sent."""
        self._due_s = now + max(self._interval_s, count / PARTIALS_PER_SECOND_MAX)
