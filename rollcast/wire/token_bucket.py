"""Cap a rate with a token bucket. Pure: the time is an argument."""

from __future__ import annotations


class TokenBucket:
    """Lets bytes, or whatever is counted, pass at a rate on average.

    Every request is granted at once and may leave a debt; the next request waits until the debt is paid. So a chunk
    larger than the burst still passes, and requests stay in order.

    Args:
        bytes_per_second: the cap.
        burst_bytes: how much may pass at once after a pause.
    """

    def __init__(self, bytes_per_second: float, burst_bytes: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._burst_bytes = burst_bytes
        self._balance_bytes = burst_bytes
        self._updated_s: float | None = None

    def take(self, size_bytes: int, now: float) -> float:
        """Take ``size_bytes``; return the seconds that they have to wait until earlier debts are paid."""
        if self._updated_s is not None:
            earned = (now - self._updated_s) * self.bytes_per_second
            self._balance_bytes = min(self._burst_bytes, self._balance_bytes + earned)
        self._updated_s = now
        wait_s = max(0.0, -self._balance_bytes / self.bytes_per_second)
        self._balance_bytes -= size_bytes
        return wait_s

    def spend(self, size_bytes: int, now: float) -> float:
        """Take ``size_bytes``; return the seconds until they are paid as well as earlier debts."""
        self.take(size_bytes, now)
        return max(0.0, -self._balance_bytes / self.bytes_per_second)
