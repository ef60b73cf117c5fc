"""Derive all randomness of a simulation from one seed, with a stream per concern.

Streams are independent, so that code which adds a concern or samples more often leaves all other streams as they were.
"""

from __future__ import annotations

import math
from _random import Random as PlainRandom
from random import Random

from blake3 import blake3

_RATIO = 4.0 * math.exp(-0.5) / math.sqrt(2.0)


class Chance:
    """The random streams of one simulation, by name."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, Random] = {}

    def of(self, concern: str) -> Random:
        """Return the stream of a concern; the same object at every call."""
        stream = self._streams.get(concern)
        if stream is None:
            digest = blake3(f"rollcast/sim/{self.seed}/{concern}".encode()).digest(length=8)
            stream = self._streams[concern] = Random(int.from_bytes(digest, "little"))
        return stream


def lognormal(random: PlainRandom, sigma: float) -> float:
    """Return what ``Random.lognormvariate(0.0, sigma)`` does, in code that is compiled with the simulator.

    ``PlainRandom`` is the part of ``Random`` that is written in C.
    """
    uniform = random.random
    while True:  # Kinderman and Monahan's ratio of uniform deviates
        first, second = uniform(), 1.0 - uniform()
        z = _RATIO * (first - 0.5) / second
        if z * z / 4.0 <= -math.log(second):
            return math.exp(z * sigma)
