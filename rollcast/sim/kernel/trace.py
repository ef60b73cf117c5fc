"""What happened, as a digest that the same seed always gives, and the newest of it in words."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from blake3 import blake3

_encoder = msgspec.msgpack.Encoder()

_GATHERED = 512  # entries hashed at once
_KEPT = 20_000


class Trace:
    """Entries (time, kind, subject, ...) of numbers, texts, and tuples of them."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = blake3()
        self._gathered: list[tuple[Any, ...]] = []
        self._newest: deque[tuple[Any, ...]] = deque(maxlen=_KEPT)

    def add(self, *entry: Any) -> None:
        """One more entry."""
        self.count += 1
        self._gathered.append(entry)
        if len(self._gathered) >= _GATHERED:
            self._gather()

    def digest(self) -> str:
        """Of everything so far: 16 hexadecimal digits."""
        self._gather()
        return self._hash.hexdigest(length=8)

    def story(self, subject: object, count: int = 12) -> list[str]:
        """The newest entries that name a subject, oldest first."""
        self._gather()
        found = [entry for entry in self._newest if subject in entry]
        return [f"{entry[0]:.3f} " + " ".join(map(str, entry[1:])) for entry in found[-count:]]

    def _gather(self) -> None:
        self._hash.update(_encoder.encode(self._gathered))
        self._newest.extend(self._gathered)
        self._gathered.clear()
