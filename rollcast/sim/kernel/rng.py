"""All chance of a simulation from one seed, split by concern: a new concern changes no other one's draws."""

from __future__ import annotations

from random import Random

from blake3 import blake3


class Chance:
    """Streams of random numbers by name."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, Random] = {}

    def of(self, concern: str) -> Random:
        """The stream of this concern; asking again gives the same object."""
        stream = self._streams.get(concern)
        if stream is None:
            digest = blake3(f"rollcast/sim/{self.seed}/{concern}".encode()).digest(length=8)
            stream = self._streams[concern] = Random(int.from_bytes(digest, "little"))
        return stream
