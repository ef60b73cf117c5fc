"""Make the views of large fleets in several turns of the event loop.

Such a view is a generator: it yields where the loop may serve others, and returns the view. Members that join, leave or
change between two turns are shown as they were when their turn came.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
Turns = Generator[None, None, T]

MEMBERS_A_TURN = 1000
"""Members whose rows are made in one turn: some 10 ms."""
PAUSE_S = 0.005
"""Seconds between two turns. Whatever is due meanwhile waits for one turn; without a pause it would wait for two."""


def at_once(turns: Turns[T]) -> T:
    """Return the view, made in one turn."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            found: T = end.value
            return found


def slices(items: Sequence[T], size: int = MEMBERS_A_TURN) -> Iterator[Sequence[T]]:
    """Yield the items, ``size`` at a time."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
