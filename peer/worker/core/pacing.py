"""Decide when a worker starts a batch, reports partial rollouts, and requests further slots.

``BatchPatience``: leases arrive in bursts, so the first of them wait a moment for the rest. When a batch ends, its last
slots are requested only then, and the answer takes a round trip. Most rollouts of the batch ended earlier, so their
successors wait already; a batch of these alone would leave the last slots empty for its whole time, batch after batch.
``PartialPace``: a session has a budget of messages, and reports of partial rollouts must leave room in it.
``SlotsAsked``: the coordinator knows the free slots of the last request, less those that it granted since.
"""

from __future__ import annotations

FULL_BATCH_WAIT_S = 0.02  # within which the leases of one burst arrive
REST_SHARE = 0.05  # of the previous batch's time is waited for its last slots' successors
REST_WAIT_MAX_S = 0.5


class BatchPatience:
    """Decides how long a batch that is not full waits for further leases. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rest_until_s = 0.0

    def ended(self, begun_s: float, now: float, *, connected: bool) -> None:
        """Note that a batch ended; its last slots are requested now if the coordinator is connected.

        Args:
            begun_s: when the batch began.
        """
        self._rest_until_s = now + min(REST_WAIT_MAX_S, REST_SHARE * (now - begun_s)) if connected else 0.0

    def until_s(self, received_s: float) -> float:
        """Return when a batch whose oldest lease came at ``received_s`` begins, full or not."""
        return max(received_s + FULL_BATCH_WAIT_S, self._rest_until_s)


PARTIALS_AT_ONCE_MAX = 256  # partial results sent together: well within the session's outbox
PARTIALS_PER_SECOND_MAX = 50.0  # so large batches are reported less often


class PartialPace:
    """Decides when partial results of running rollouts are sent.

    Args:
        interval_s: seconds between two messages at least; 0: none are sent.
    """

    def __init__(self, interval_s: float = 0.0, now: float = 0.0) -> None:
        self._interval_s = interval_s
        self._due_s = now + interval_s

    def began(self, now: float) -> None:
        """A batch began: wait a whole interval before its first report."""
        self._due_s = now + self._interval_s

    def is_due(self, now: float) -> bool:
        """Return whether partial results should be sent now."""
        return self._interval_s > 0.0 and now >= self._due_s

    def sent(self, count: int, now: float) -> None:
        """Note that ``count`` partial results were sent."""
        self._due_s = now + max(self._interval_s, count / PARTIALS_PER_SECOND_MAX)


class SlotsAsked:
    """The free slots that the coordinator knows of: none at first, so each session begins with a new object."""

    def __init__(self) -> None:
        self._requested: int | None = None

    def granted(self, slots: int) -> None:
        """Note that the coordinator granted leases for ``slots`` of the free slots."""
        if self._requested is not None:
            self._requested = max(0, self._requested - slots)

    def is_news(self, free_slots: int) -> bool:
        """Return whether the coordinator must learn of ``free_slots``; if so, they count as requested from now on."""
        if free_slots == self._requested or (free_slots == 0 and self._requested is None):
            return False
        self._requested = free_slots
        return True
