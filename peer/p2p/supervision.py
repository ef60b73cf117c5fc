"""When a libp2p thread that died is started again. Decisions only."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_S = 1.0
_MOST_S = 60.0
# A thread that ran for so long has proved itself: its death is the first again.
_STEADY_S = 300.0


@dataclass(slots=True)
class RestartBackoff:
    """The deaths of one thread.

    Args:
        deaths: in a row, so far.
        started_at_s: when the thread began to run last.
    """

    deaths: int = 0
    started_at_s: float = 0.0

    def started(self, now: float) -> None:
        """It runs."""
        self.started_at_s = now

    def died(self, jitter: float, now: float) -> float:
        """It died.

        Args:
            jitter: between 0 and 1.

        Returns:
            seconds until it is started again: between half of the ceiling and all of it; the ceiling doubles.
        """
        if now - self.started_at_s >= _STEADY_S:
            self.deaths = 0
        ceiling_s = min(_MOST_S, _FIRST_S * 2.0 ** min(self.deaths, 16))
        self.deaths += 1
        return ceiling_s * (0.5 + 0.5 * jitter)
