"""Bounded windows of measurements, and the series that a screen draws."""

from __future__ import annotations

import math
from collections import deque

WINDOW = 512  # measurements that a percentile is taken over


class Window:
    """The newest measurements of one quantity."""

    def __init__(self, size: int = WINDOW) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def last(self) -> float | None:
        return self._values[-1] if self._values else None

    def percentile(self, percent: float) -> float | None:
        """Nearest-rank percentile; None without a measurement."""
        if not self._values:
            return None
        rank = max(1, math.ceil(percent / 100 * len(self._values)))
        return sorted(self._values)[rank - 1]


class Series:
    """Points (x, y) with rising x, thinned to every second point whenever there are too many to draw."""

    def __init__(self, points_max: int = 2000) -> None:
        self._points_max = points_max
        self._points: list[tuple[int, float]] = []
        self._keep_every = 1

    def add(self, x: int, y: float) -> None:
        """Points that are not a multiple of the current spacing are left out; the last one always shows."""
        if self._points and self._points[-1][0] % self._keep_every:
            self._points.pop()
        self._points.append((x, y))
        while len(self._points) > self._points_max:
            self._keep_every *= 2
            last = self._points[-1]
            self._points = [point for point in self._points if point[0] % self._keep_every == 0 or point is last]

    def points(self) -> list[tuple[int, float]]:
        return list(self._points)
