"""Decide when a coordinator counts as silent: it has not answered a heartbeat for too long. Pure.

gRPC's keepalive notices a connection that carries nothing, after up to 20 s, but a coordinator's transport answers it
even while the coordinator's event loop does not run. A HeartbeatAnswer comes from that loop.
"""

from __future__ import annotations

TICKS_PER_BEAT = 4  # how often the owner calls ``tick`` in each heartbeat interval
ANSWERS_OF_PATIENCE = 4.0  # times that the slowest recent answer may be exceeded: a busy coordinator answers late
SLOWEST_KEPT = 0.9  # share of the slowest answer that still counts at the next one


class AnswerWatch:
    """Tracks the heartbeats of one session that are not answered yet.

    The wait is counted in ticks of the caller's event loop, so that time in which that loop did not run does not count
    as silence. Every message of the coordinator counts as an answer.

    Args:
        interval_s: seconds between two heartbeats.
        answer_s: seconds within which the coordinator usually answers.
    """

    def __init__(self, interval_s: float, answer_s: float) -> None:
        self.tick_s = interval_s / TICKS_PER_BEAT
        self._answer_s = answer_s
        self._slowest_s = 0.0
        self._waited_s: float | None = None  # None: nothing waits for an answer

    @property
    def is_silent(self) -> bool:
        """Whether an answer is overdue."""
        patience_s = max(self._answer_s, ANSWERS_OF_PATIENCE * self._slowest_s)
        return self._waited_s is not None and self._waited_s >= patience_s

    def heartbeat_sent(self) -> None:
        """Expect an answer, unless an earlier heartbeat still waits for one."""
        if self._waited_s is None:
            self._waited_s = 0.0

    def tick(self) -> None:
        """Count one tick of the wait."""
        if self._waited_s is not None:
            self._waited_s += self.tick_s

    def message_received(self) -> None:
        """Count a message of the coordinator as the answer."""
        if self._waited_s is not None:
            self._slowest_s = max(self._waited_s, SLOWEST_KEPT * self._slowest_s)
            self._waited_s = None
