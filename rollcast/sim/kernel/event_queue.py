"""Advance virtual time. Calls at the same moment happen in the order in which they were scheduled."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Call = Callable[..., None]


class Owner:
    """A process that schedules calls, which are made only while the life goes on in which it scheduled them.

    A class and no protocol: compiled code reads its attributes at their places, which it does at each call.
    """

    def __init__(self) -> None:
        self.life = 0  # increases with every start
        self.takes_calls = False  # whether a call of this life can be made now: it runs, and none that is due waits

    def hold(self, life: int, call: Call, arguments: tuple[Any, ...]) -> None:
        """Keep or discard a call that is due and cannot be made now."""
        raise NotImplementedError


_SPANS_PER_S = 32.0
"""Spans are shorter than most messages take, which so are for a later one; a power of two keeps times exact."""

# (time, number, call, arguments, owner, life): a tuple of any length to mypyc, which takes one of known length apart
# whenever it looks at it.
_Entry = tuple[Any, ...]


class Agenda:
    """The queue of scheduled calls, ordered by time and then by order of scheduling.

    Calls of each later span of time are in a list, which is sorted when that span begins; those that are then scheduled
    for the same span are in a heap beside it. With 10,000 peers, one heap of all calls took a tenth of a simulation's
    time, and one of the present second's calls a twentieth.

    Attributes:
        now: virtual seconds since the simulation began; it never decreases.
        done: calls made so far.
    """

    __slots__ = ("_count", "_heap", "_later", "_sorted", "_spans", "_until_s", "done", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.done = 0  # calls made so far
        self._sorted: list[_Entry] = []  # calls before ``_until_s``, the last one first
        self._heap: list[_Entry] = []  # further ones before ``_until_s``
        self._until_s = 1.0 / _SPANS_PER_S
        self._later: dict[int, list[_Entry]] = {}  # by span
        self._spans: list[int] = []  # the keys of ``_later``, as a heap
        self._count = 0

    def after(self, seconds: float, call: Call, *arguments: Any) -> None:
        """Schedule a call ``seconds`` from now."""
        self._count = count = self._count + 1
        at_s = self.now + seconds
        if at_s < self._until_s:
            heappush(self._heap, (at_s, count, call, arguments, None, 0))
        else:
            self._calls_of(int(at_s * _SPANS_PER_S)).append((at_s, count, call, arguments, None, 0))

    def after_in_life(self, seconds: float, owner: Owner, call: Call, arguments: tuple[Any, ...]) -> None:
        """Schedule a call ``seconds`` from now, which is made only if the owner's present life still goes on then."""
        self._count = count = self._count + 1
        at_s = self.now + seconds
        if at_s < self._until_s:
            heappush(self._heap, (at_s, count, call, arguments, owner, owner.life))
        else:
            self._calls_of(int(at_s * _SPANS_PER_S)).append((at_s, count, call, arguments, owner, owner.life))

    def _calls_of(self, span: int) -> list[_Entry]:
        """Return the calls of a later span, to which one more is appended."""
        calls = self._later.get(span)
        if calls is None:
            calls = self._later[span] = []
            heappush(self._spans, span)
        return calls

    def _pop(self, until_s: float) -> _Entry | None:
        """Remove the next call and return it; None if none is due until then."""
        heap, ahead = self._heap, self._sorted
        if not ahead and not heap:
            if not self._spans or self._spans[0] > until_s * _SPANS_PER_S:
                return None
            ahead = self._begin_span(heappop(self._spans))
        if ahead and (not heap or ahead[-1] < heap[0]):
            at_s: float = ahead[-1][0]
            return ahead.pop() if at_s <= until_s else None
        at_s = heap[0][0]
        return heappop(heap) if at_s <= until_s else None

    def _begin_span(self, span: int) -> list[_Entry]:
        """Sort the calls of a span that begins, and return them."""
        self._until_s = (span + 1.0) / _SPANS_PER_S
        self._sorted = calls = self._later.pop(span)
        calls.sort(reverse=True)
        return calls

    def run(self, until_s: float, done: Callable[[], bool] | None = None) -> bool:
        """Make the scheduled calls until ``done`` holds, checked after each call, or until virtual time ``until_s``.

        Returns:
            Whether ``done`` holds; False if it is None.
        """
        if done is None:
            self._run_all(until_s)
            return False
        if done():
            return True
        while (entry := self._pop(until_s)) is not None:
            self._make(entry)
            self.done += 1
            if done():
                return True
        self.now = max(self.now, until_s)
        return False

    def _run_all(self, until_s: float) -> None:
        made = 0
        arguments: tuple[Any, ...]
        owner: Owner | None
        life: int
        try:
            while (entry := self._pop(until_s)) is not None:
                self.now, _, call, arguments, owner, life = entry
                made += 1
                if owner is None or (owner.takes_calls and owner.life == life):
                    call(*arguments)
                else:
                    owner.hold(life, call, arguments)
        finally:
            self.done += made
        self.now = max(self.now, until_s)

    def _make(self, entry: _Entry) -> None:
        arguments: tuple[Any, ...]
        owner: Owner | None
        life: int
        self.now, _, call, arguments, owner, life = entry
        if owner is None or (owner.takes_calls and owner.life == life):
            call(*arguments)
        else:
            owner.hold(life, call, arguments)
