"""Keep bounded windows of measurements, values of identities, distributions, and series for charts."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TypeVar

WINDOW = 512  # measurements that a percentile is taken over
IDENTITIES_KEPT = 16384  # at least, however small the fleet: their values are small, and identities come back

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def percentile_of(values: Iterable[float], percent: float) -> float | None:
    """Return the nearest-rank percentile; None without a value."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(percent / 100 * len(ordered))) - 1] if ordered else None


class Window:
    """The newest measurements of one quantity; before the first it takes next to no memory."""

    __slots__ = ("_size", "_values")

    def __init__(self, size: int = WINDOW) -> None:
        self._size = size
        self._values: deque[float] | None = None

    def add(self, value: float) -> None:
        if self._values is None:
            self._values = deque(maxlen=self._size)
        self._values.append(value)

    @property
    def last(self) -> float | None:
        return self._values[-1] if self._values else None

    def percentile(self, percent: float) -> float | None:
        """Return the nearest-rank percentile; None without a measurement."""
        return percentile_of(self._values or (), percent)


class RecentIdentities(OrderedDict[KeyT, ValueT]):
    """Values of identities, the one used longest ago first; bounded, because a stranger can make new identities."""

    limit = IDENTITIES_KEPT

    def make_room(self, members: int) -> None:
        """Keep the values of this many members, and of as many that left and may come back."""
        self.limit = max(IDENTITIES_KEPT, 2 * members)

    def use(self, identity: KeyT, value: ValueT) -> None:
        """Set the value of an identity, which is now the one used last."""
        self[identity] = value
        self.move_to_end(identity)
        while len(self) > self.limit:
            self.popitem(last=False)

    def used(self, identity: KeyT, make: Callable[[], ValueT]) -> ValueT:
        """Return the value of an identity, which is now the one used last; ``make`` makes it if there is none."""
        value = self.get(identity)
        if value is None:
            value = make()
            self.use(identity, value)
        else:
            self.move_to_end(identity)
        return value


class Distribution:
    """Counts how often a quantity was at most each of some bounds, since the start."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Count by ``bounds``, rising upper bounds; larger values are counted above the last one."""
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.sum += value
        self._counts[bisect_left(self.bounds, value)] += 1

    def at_most(self) -> tuple[int, ...]:
        """Return how many values were at most each bound; the last count is that of all values."""
        return tuple(accumulate(self._counts))


class Series:
    """Points (x, y) with rising x, thinned to every second point whenever there are too many to draw."""

    def __init__(self, points_max: int = 2000) -> None:
        self._points_max = points_max
        self._points: list[tuple[int, float]] = []
        self._keep_every = 1

    def add(self, x: int, y: float) -> None:
        """Add a point. Points at multiples of the current spacing are kept, and always the last one."""
        if self._points and self._points[-1][0] % self._keep_every:
            self._points.pop()
        self._points.append((x, y))
        while len(self._points) > self._points_max:
            self._keep_every *= 2
            last = self._points[-1]
            self._points = [point for point in self._points if point[0] % self._keep_every == 0 or point is last]

    def points(self) -> list[tuple[int, float]]:
        return list(self._points)
