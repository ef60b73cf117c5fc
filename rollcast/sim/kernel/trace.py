"""Record what happens in a simulation: a digest that is the same for the same seed, and the newest entries as text."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from blake3 import blake3

_encoder = msgspec.msgpack.Encoder()

_GATHERED = 512  # entries encoded and hashed at once, because a call for each entry would cost more
_KEPT = 20_000  # newest entries kept for the stories of violations


class Trace:
    """A trace of entries (time, kind, subject, ...), which hold numbers, strings, and tuples of them."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = blake3()
        self._gathered: list[tuple[Any, ...]] = []
        self._newest: deque[tuple[Any, ...]] = deque(maxlen=_KEPT)

    def add(self, *entry: Any) -> None:
        """Append an entry."""
        self.count += 1
        self._gathered.append(entry)
        if len(self._gathered) >= _GATHERED:
            self._gather()

    def digest(self) -> str:
        """Return the digest of all entries so far, as 16 hexadecimal digits."""
        self._gather()
        return self._hash.hexdigest(length=8)

    def story(self, subject: object, count: int = 12) -> list[str]:
        """Return up to ``count`` of the newest entries that name a subject, oldest first."""
        self._gather()
        found = [entry for entry in self._newest if subject in entry]
        return [f"{entry[0]:.3f} " + " ".join(map(str, entry[1:])) for entry in found[-count:]]

    def _gather(self) -> None:
        self._hash.update(_encoder.encode(self._gathered))
        self._newest.extend(self._gathered)
        self._gathered.clear()
