"""How long a batch that is not full waits for the rest of it. Pure.

Leases arrive in bursts, so whatever comes first waits a moment for what comes with it. When a batch has ended, the last
of its slots are asked for only then, and the answer takes a round trip: where most rollouts ended before, their
successors wait already, and a batch of them alone would leave the others out for the whole of its time, batch after
batch.

When running rollouts are told of, and how many at once: a session has a budget of messages. Pure.

What the coordinator believes that we can take: our last word, less what it granted since. Pure.
"""

from __future__ import annotations

FULL_BATCH_WAIT_S = 0.02  # of the leases of one burst
REST_SHARE = 0.05  # of the time of the batch before
REST_WAIT_MAX_S = 0.5


class BatchPatience:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rest_until_s = 0.0

    def ended(self, begun_s: float, now: float, *, connected: bool) -> None:
        """A batch that began then has ended; what it leaves free is asked for now, if anybody can be asked."""
        self._rest_until_s = now + min(REST_WAIT_MAX_S, REST_SHARE * (now - begun_s)) if connected else 0.0

    def until_s(self, received_s: float) -> float:
        """When a batch whose oldest lease came then begins, full or not."""
        return max(received_s + FULL_BATCH_WAIT_S, self._rest_until_s)


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


class SlotsAsked:
    """Of one session: a new one knows nothing."""

    def __init__(self) -> None:
        self._told: int | None = None

    def granted(self, slots: int) -> None:
        """Leases of so many slots came."""
        if self._told is not None:
            self._told = max(0, self._told - slots)

    def is_news(self, free_slots: int) -> bool:
        """Whether the coordinator must be told; it then counts as told."""
        if free_slots == self._told or (free_slots == 0 and self._told is None):
            return False
        self._told = free_slots
        return True
