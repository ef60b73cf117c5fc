"""Choose how far away a peer that joins asks holders for chunks: farther ones only where they make it faster. Pure.

All that a far holder sends takes capacity of long paths, and of a downlink that near holders could fill. The windows of
requests do not see to that: they grow with the round trip, so at a downlink that all share the far holders win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

FARTHEST = 8
"""The class of the origin, which is asked last."""

# Round trips up to this are all near.
_NEAR_RTT_S = 0.005
# A rate is that of at least this long a time, of this many round trips unless they are very long, and of this many
# chunks unless they take long.
_MEASURED_S_LEAST = 0.25
_ROUND_TRIPS_S_MOST = 1.0
_MEASURED_S_MOST = 4.0
_MEASURED_ROUND_TRIPS = 4.0
_MEASURED_CHUNKS = 16
# A rate that is less than this many times another one is not better.
_BETTER = 1.15
# Farther holders that did not make it faster are tried again after this long, then after twice as long, up to the most.
_AGAIN_S_LEAST = 4.0
_AGAIN_S_MOST = 60.0


def distance_class(rtt_s: float) -> int:
    """Return a class of round trips that doubles with each: 0 up to 5 ms, the last before FARTHEST if it is unknown."""
    if rtt_s <= 0.0:
        return FARTHEST - 1
    return min(FARTHEST - 1, max(0, ceil(log2(rtt_s / _NEAR_RTT_S))))


@dataclass(slots=True)
class Reach:
    """The farthest class of holders that are asked for one encoding.

    It begins with the nearest holders. Once the rate of chunks no longer rises, those of the next class are asked too,
    and no longer asked if the rate is no better with them.
    """

    most: int = FARTHEST
    _nearest: int = FARTHEST + 1
    _since_s: float = 0.0
    _since_chunks: int = 0
    _rate: float = 0.0  # chunks a second, as last measured
    _tried_from: int | None = None  # the class before the one that is being tried
    _vain: int = -1  # the class that was last tried in vain
    _again_at_s: float = 0.0
    _again_s: float = _AGAIN_S_LEAST

    def within(self, classes: Sequence[int], chunks: int, now: float) -> int:
        """Return the farthest class to ask now.

        Args:
            classes: those of the holders that could send everything, ascending; at least one.
            chunks: the chunks that are here.
        """
        nearest, self._nearest = self._nearest, classes[0]
        if classes[0] < nearest or classes[0] > self.most:  # nearer holders have come, or left
            self._rate, self._tried_from = 0.0, None
            self._measure_from(classes[0], chunks, now)
            return self.most
        came, took_s = chunks - self._since_chunks, now - self._since_s
        if took_s < self._measured_s or (came < _MEASURED_CHUNKS and took_s < _MEASURED_S_MOST):
            return self.most
        before, self._rate = self._rate, came / took_s
        self._measure_from(self._next(classes, before, now), chunks, now)
        return self.most

    @property
    def _measured_s(self) -> float:
        round_trips_s = _MEASURED_ROUND_TRIPS * _NEAR_RTT_S * 2.0**self.most
        return max(_MEASURED_S_LEAST, min(_ROUND_TRIPS_S_MOST, round_trips_s))

    def _measure_from(self, most: int, chunks: int, now: float) -> None:
        self.most, self._since_chunks, self._since_s = most, chunks, now

    def _next(self, classes: Sequence[int], before: float, now: float) -> int:
        """Return the farthest class to ask, given the rate before the one that was just measured."""
        better = self._rate > _BETTER * before
        tried_from, self._tried_from = self._tried_from, None
        if tried_from is not None and not better:
            self._rate, self._vain = before, self.most
            self._again_at_s, self._again_s = now + self._again_s, min(2.0 * self._again_s, _AGAIN_S_MOST)
            return tried_from
        slower = before > _BETTER * self._rate
        farther = [one for one in classes if one > self.most]
        if not farther or (better and tried_from is None) or (now < self._again_at_s and not slower):
            return self.most
        self._tried_from = self.most
        return next((one for one in farther if one > self._vain), farther[0])
