"""Let a busy event loop gather what arrives, so that it serves several callers in each of its turns.

gRPC reports each step of each call by itself, five or more for an upload, and each report wakes the loop. Under load
the turns of the loop, and the switches between its thread and gRPC's, cost more than what is done in them. A loop that
is busy therefore pauses before it waits for events again, as network drivers do under load.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable

PAUSE_S = 0.002
"""Shortest time from one turn of a busy loop to the next."""
WINDOW_S = 0.1  # after which it is decided again whether the loop is busy
TURNS_A_SECOND_MIN = 250.0  # fewer cost little; with the pause there are up to 1 / PAUSE_S
BUSY_SHARE_FROM, BUSY_SHARE_UNTIL = 0.25, 0.1  # of the time, not spent waiting: with the pause it falls


class Load:
    """Decides whether a loop is busy; times are seconds of one clock."""

    def __init__(self, now: float) -> None:
        self.is_high = False
        self._began_at = now
        self._turns = 0
        self._waited_s = 0.0

    def turned(self, waited_s: float, now: float) -> None:
        """Count a turn, before which the loop waited for events for ``waited_s``."""
        self._turns += 1
        self._waited_s += waited_s
        took_s = now - self._began_at
        if took_s < WINDOW_S:
            return
        share = 1.0 - self._waited_s / took_s
        enough = BUSY_SHARE_UNTIL if self.is_high else BUSY_SHARE_FROM
        self.is_high = self._turns >= TURNS_A_SECOND_MIN * took_s and share >= enough
        self._began_at, self._turns, self._waited_s = now, 0, 0.0


class GatheringSelector(selectors.DefaultSelector):
    """A selector that makes a busy loop pause for the rest of PAUSE_S since its last turn began."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__()
        self._clock = clock
        self._pause = pause
        self._turn_at = clock()
        self._load = Load(self._turn_at)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready. A loop that has other work to do at once passes 0, and never pauses."""
        began_at = self._clock()
        if self._load.is_high and (timeout is None or timeout > 0.0):
            rest_s = self._turn_at + PAUSE_S - began_at
            if rest_s > 0.0:
                rest_s = rest_s if timeout is None else min(rest_s, timeout)
                self._pause(rest_s)
                timeout = None if timeout is None else max(0.0, timeout - rest_s)
        ready = super().select(timeout)
        self._turn_at = self._clock()
        self._load.turned(self._turn_at - began_at, self._turn_at)
        return ready


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that gathers under load."""
    return asyncio.SelectorEventLoop(GatheringSelector())
