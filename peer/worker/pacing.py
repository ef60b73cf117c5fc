"""How long a batch that is not full waits for the rest of it. Pure.

Leases arrive in bursts, so whatever comes first waits a moment for what comes with it. When a batch has ended, the last
of its slots are asked for only then, and the answer takes a round trip: where most rollouts ended before, their
successors wait already, and a batch of them alone would leave the others out for the whole of its time, batch after
batch.
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
