"""Derive all randomness of a simulation from one seed, with a stream per concern.

Streams are independent, so that code which adds a concern or samples more often leaves all other streams as they were.
"""

from __future__ import annotations

from random import Random

from blake3 import blake3


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
