"""Measure how long members were silent by the time in which the coordinator itself ran, and with regard to their lag.

A coordinator that was not scheduled for seconds has not read what members sent meanwhile, and a member whose event loop
is late sends late. Neither is a member that is gone.
"""

from __future__ import annotations

TICKS_MISSED = 2.0  # a tick that comes later than this many intervals was late
BEATS_OF_LAG = 4.0  # intervals between heartbeats stretch with each stage of the loop that was late: timer, write, read
LAG_PATIENCE_S_MAX = 30.0  # a member that claims any lag is waited for no longer than this beyond the timeout


class AwakeClock:
    """A clock that stands still while the coordinator's ticks do not come; all times in seconds.

    Args:
        tick_s: interval at which ticks come; None: the clock never stands still.
    """

    def __init__(self, tick_s: float | None) -> None:
        self._late_after_s = None if tick_s is None else TICKS_MISSED * tick_s
        self._ticked_at: float | None = None
        self._stalled_s = 0.0

    def tick(self, now: float) -> None:
        """Count the time since the last tick; what exceeds the usual interval is not the members' silence."""
        if self._late_after_s is not None and self._ticked_at is not None:
            self._stalled_s += max(0.0, now - self._ticked_at - self._late_after_s)
        self._ticked_at = now

    def at(self, now: float) -> float:
        """Return the time of this clock."""
        return now - self._stalled_s


def patience_s(timeout_s: float, loop_lag_s: float) -> float:
    """Return how long a member may be silent, which reports that its event loop is this late."""
    return timeout_s + min(BEATS_OF_LAG * loop_lag_s, LAG_PATIENCE_S_MAX)
