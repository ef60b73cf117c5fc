"""Keep the set of trained rollouts, compact enough for a checkpoint: no rollout is trained on twice."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class TrainedIds:
    """A set of rollout ids as disjoint, sorted ranges.

    The coordinator numbers rollouts in order and most of them are trained on, so the ranges stay few however long the
    run is: about one for each rollout that was dropped.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # inclusive
        for start, end in sorted(ranges):
            if end < start or (self._ends and start <= self._ends[-1]):
                raise ValueError(f"ranges of trained rollouts overlap or are reversed at {start}..{end}")
            self._starts.append(start)
            self._ends.append(end)

    def __contains__(self, rollout_id: object) -> bool:
        if not isinstance(rollout_id, int):
            return False
        index = bisect_right(self._starts, rollout_id) - 1
        return index >= 0 and rollout_id <= self._ends[index]

    def __len__(self) -> int:
        return sum(end - start + 1 for start, end in zip(self._starts, self._ends, strict=True))

    def add(self, rollout_id: int) -> bool:
        """Add one id. Return False if it was in the set already."""
        if rollout_id in self:
            return False
        index = bisect_right(self._starts, rollout_id)
        joins_left = index > 0 and self._ends[index - 1] == rollout_id - 1
        joins_right = index < len(self._starts) and self._starts[index] == rollout_id + 1
        if joins_left and joins_right:
            self._ends[index - 1] = self._ends.pop(index)
            self._starts.pop(index)
        elif joins_left:
            self._ends[index - 1] = rollout_id
        elif joins_right:
            self._starts[index] = rollout_id
        else:
            self._starts.insert(index, rollout_id)
            self._ends.insert(index, rollout_id)
        return True

    def ranges(self) -> list[list[int]]:
        """Return the ranges [first, last] in order, as a checkpoint stores them."""
        return [[start, end] for start, end in zip(self._starts, self._ends, strict=True)]
