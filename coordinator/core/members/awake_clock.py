"""Measure how long members were silent by the time in which the coordinator itself ran, and with regard to their lag.

A coordinator that was not scheduled for seconds has not read what members sent meanwhile, a member whose event loop is
late sends late, and over a full uplink a heartbeat takes seconds: TCP sends a lost one again after longer and longer
waits. None of these is a member that is gone. How far apart a member's messages came lately shows the last two.
"""

from __future__ import annotations

from math import exp2

TICKS_MISSED = 2.0  # a tick that comes later than this many intervals was late
BEATS_OF_LAG = 4.0  # intervals between heartbeats stretch with each stage of the loop that was late: timer, write, read
LAG_PATIENCE_S_MAX = 30.0  # a member that claims any lag is waited for no longer than this beyond the timeout
GAPS_OF_SILENCE = 3.0  # a lost heartbeat is sent again after 1, 1 + 2, ... retransmission timeouts of TCP
_GAP_HALF_LIFE_S = 60.0  # for which a member's longest gap between messages counts until half of it does


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


def longest_gap_s(before_s: float, gap_s: float) -> float:
    """Return the longest time between two messages of a member, in which those of long ago count for less.

    Args:
        before_s: the longest time before the newest message.
        gap_s: seconds between that message and the one before it.
    """
    return max(gap_s, before_s * exp2(-gap_s / _GAP_HALF_LIFE_S))


def patience_s(timeout_s: float, loop_lag_s: float, gap_s: float) -> float:
    """Return how long a member may be silent.

    Args:
        loop_lag_s: by how much it reports that its event loop is late.
        gap_s: the longest time between two of its messages lately.
    """
    late_s = max(BEATS_OF_LAG * loop_lag_s, GAPS_OF_SILENCE * gap_s - timeout_s)
    return timeout_s + min(max(0.0, late_s), LAG_PATIENCE_S_MAX)
