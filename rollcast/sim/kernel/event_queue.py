"""Advance virtual time. Calls at the same moment happen in the order in which they were scheduled."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Protocol

Call = Callable[..., None]


class Owner(Protocol):
    """A process that schedules calls, which are made only while the life goes on in which it scheduled them."""

    life: int
    takes_calls: bool

    def hold(self, life: int, call: Call, arguments: tuple[Any, ...]) -> None:
        """Keep or discard a call that is due and cannot be made now."""
        ...


_Entry = tuple[float, int, Call, tuple[Any, ...], Owner | None, int]


class Agenda:
    """The queue of scheduled calls, ordered by time and then by order of scheduling.

    Attributes:
        now: virtual seconds since the simulation began; it never decreases.
        done: calls made so far.
    """

    __slots__ = ("_count", "_heap", "done", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.done = 0  # calls made so far
        self._heap: list[_Entry] = []
        self._count = 0

    def after(self, seconds: float, call: Call, *arguments: Any) -> None:
        """Schedule a call ``seconds`` from now."""
        self._count = count = self._count + 1
        heapq.heappush(self._heap, (self.now + seconds, count, call, arguments, None, 0))

    def after_in_life(self, seconds: float, owner: Owner, call: Call, arguments: tuple[Any, ...]) -> None:
        """Schedule a call ``seconds`` from now, which is made only if the owner's present life still goes on then."""
        self._count = count = self._count + 1
        heapq.heappush(self._heap, (self.now + seconds, count, call, arguments, owner, owner.life))

    def run(self, until_s: float, done: Callable[[], bool] | None = None) -> bool:
        """Make the scheduled calls until ``done`` holds, checked after each call, or until virtual time ``until_s``.

        Returns:
            Whether ``done`` holds; False if it is None.
        """
        if done is None:
            self._run_all(until_s)
            return False
        heap, pop = self._heap, heapq.heappop
        if done():
            return True
        while heap and heap[0][0] <= until_s:
            self._make(pop(heap))
            self.done += 1
            if done():
                return True
        self.now = max(self.now, until_s)
        return False

    def _run_all(self, until_s: float) -> None:
        heap, pop, made = self._heap, heapq.heappop, 0
        try:
            while heap and heap[0][0] <= until_s:
                self.now, _, call, arguments, owner, life = pop(heap)
                made += 1
                if owner is None or (owner.takes_calls and owner.life == life):
                    call(*arguments)
                else:
                    owner.hold(life, call, arguments)
        finally:
            self.done += made
        self.now = max(self.now, until_s)

    def _make(self, entry: _Entry) -> None:
        self.now, _, call, arguments, owner, life = entry
        if owner is None or (owner.takes_calls and owner.life == life):
            call(*arguments)
        else:
            owner.hold(life, call, arguments)
