"""Decide when a libp2p thread that died is restarted: backoff that doubles, with jitter. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_S = 1.0
_MOST_S = 60.0
_STEADY_S = 300.0  # a thread that ran this long was healthy: its death counts as the first


@dataclass(slots=True)
class RestartBackoff:
    """Count the deaths of one thread, and compute the delay before each restart.

    Args:
        deaths: deaths in a row so far.
        started_at_s: time of the last start.
    """

    deaths: int = 0
    started_at_s: float = 0.0

    def started(self, now: float) -> None:
        """Record a start of the thread."""
        self.started_at_s = now

    def died(self, jitter: float, now: float) -> float:
        """Record a death of the thread.

        Args:
            jitter: random number between 0 and 1.

        Returns:
            Seconds until the restart: between half of the ceiling and all of it. The ceiling doubles with each death.
        """
        if now - self.started_at_s >= _STEADY_S:
            self.deaths = 0
        ceiling_s = min(_MOST_S, _FIRST_S * 2.0 ** min(self.deaths, 16))
        self.deaths += 1
        return ceiling_s * (0.5 + 0.5 * jitter)
