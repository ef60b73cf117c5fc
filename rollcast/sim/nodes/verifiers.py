"""Simulate the coordinator's pool of verifier processes: a number of them, the time of each item, and failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from coordinator.core.events.actions import ScoreRollout
from rollcast.sim.kernel.process import Process
from rollcast.sim.kernel.rng import lognormal
from rollcast.sim.settings import FleetSettings
from rollcast.wire.token_ids import unpack_ids

_SPREAD = 0.5  # sigma of the logarithm of an item's time; rollcast/sim/validation.py assumes the same

#: Receives the reward; None: the verifier failed.
Scored = Callable[[ScoreRollout, float | None], None]


class Verifiers:
    """The pool that scores rollouts during one life of the coordinator's process.

    Args:
        process: the coordinator's process; items in progress are lost when it dies.
    """

    def __init__(self, settings: FleetSettings, process: Process, random: Random) -> None:
        self.failures = 0.0  # share of items that get no score: verifiers crash, or a reward service is down
        self._settings = settings
        self._process = process
        self._random = random
        self._waiting: deque[tuple[ScoreRollout, Scored]] = deque()
        self._busy = 0

    def clear(self) -> None:
        """Discard every waiting item."""
        self._waiting.clear()
        self._busy = 0

    def score(self, item: ScoreRollout, scored: Scored) -> None:
        """Verify a completion; ``scored`` is called with its reward, or with None if the verifier fails."""
        self._waiting.append((item, scored))
        self._begin()

    def _begin(self) -> None:
        while self._waiting and self._busy < self._settings.verifiers:
            self._busy += 1
            item, scored = self._waiting.popleft()
            seconds = self._settings.verify_s * lognormal(self._random, _SPREAD)
            fails = self.failures > 0.0 and self._random.random() < self.failures
            self._process.later(seconds, self._done, item, scored, fails)

    def _done(self, item: ScoreRollout, scored: Scored, fails: bool) -> None:
        self._busy -= 1
        scored(item, None if fails else float(sum(unpack_ids(item.packed_completion)) % 2))
        self._begin()
