"""Read the bytes of a version while they are still being written."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rollcast.wire.ids import Version
from rollcast.wire.versions.chunks import BytesLike, chunk_count
from rollcast.wire.versions.tensors import TensorSpec

Progress = Callable[[int], None]
"""Is called with the number of bytes of a file, from its beginning, that are written."""

Wait = Callable[[int], None]
"""Blocks until so many bytes of a state, from its beginning, can be read."""


def unheeded(_: int) -> None:
    """Report progress to nobody, or wait for nothing: all bytes are there."""


def nothing_left(_: Progress) -> None:
    """Write nothing: the file has its bytes already."""


class Write:
    """Writes a version into its file; called once, on any thread.

    Args:
        tensors: the specs of its tensors in the order of the bytes.
        run: writes them, and reports progress in ascending order; it may raise OSError.
    """

    def __init__(self, tensors: tuple[TensorSpec, ...], run: Callable[[Progress], None]) -> None:
        self.tensors = tensors
        self._run = run

    @property
    def size_bytes(self) -> int:
        """Return the size of the version's state."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def __call__(self, progress: Progress = unheeded) -> None:
        self._run(progress)
        progress(self.size_bytes)


class Growth:
    """How many bytes of a state are written. Any thread may report or wait.

    The writer may be held back so that it stays close to a reader, which frees memory for what is written.
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # from the beginning to the newest report
        self._started_s = time.monotonic()
        self._written_bytes = 0
        self._passed_bytes = 0
        self._ahead_bytes: int | None = None  # that may be written before the reader has passed them
        self._error: Exception | None = None
        self._changed = threading.Condition()

    @property
    def written_bytes(self) -> int:
        """Return how many bytes, from the beginning, are written."""
        return self._written_bytes

    def reached(self, written_bytes: int) -> None:
        """Note that so many bytes, from the beginning, are written."""
        with self._changed:
            self._written_bytes = max(self._written_bytes, written_bytes)
            self.seconds = time.monotonic() - self._started_s
            self._changed.notify_all()
            self._changed.wait_for(self._may_go_on)

    def _may_go_on(self) -> bool:
        return self._ahead_bytes is None or self._written_bytes - self._passed_bytes <= self._ahead_bytes

    def hold_back(self, ahead_bytes: int | None) -> None:
        """Let the writer be at most so many bytes ahead of the reader from now on; None: it is not held back.

        It stops at the end of a tensor. Whoever holds it back calls ``passed`` meanwhile, and this with None at last.
        """
        with self._changed:
            self._ahead_bytes = ahead_bytes
            self._changed.notify_all()

    def passed(self, until_bytes: int) -> None:
        """Note that the reader needs no bytes before this offset any more."""
        with self._changed:
            self._passed_bytes = max(self._passed_bytes, until_bytes)
            self._changed.notify_all()

    def failed(self, error: Exception) -> None:
        """Note that no more will be written; every wait for more raises this error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def wait(self, until_bytes: int) -> None:
        """Wait until so many bytes are written. The writer always ends, and then reports all of them or its error.

        Raises:
            Exception: the error of the writer.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._written_bytes >= until_bytes or self._error is not None)
            if self._written_bytes < until_bytes and self._error is not None:
                raise self._error


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A keyframe that is not signed yet, whose chunks can be sent as they are written.

    Args:
        growth: how many of the state's bytes are written.
    """

    version: Version
    state: BytesLike
    chunk_size_bytes: int
    growth: Growth

    @property
    def chunk_count(self) -> int:
        """Return how many chunks the keyframe has."""
        return chunk_count(len(self.state), self.chunk_size_bytes)

    async def chunk(self, index: int) -> memoryview:
        """Return the bytes of a chunk once they are written.

        Raises:
            Exception: the error of the writer.
        """
        start = index * self.chunk_size_bytes
        stop = min(start + self.chunk_size_bytes, len(self.state))
        if self.growth.written_bytes < stop:
            await asyncio.to_thread(self.growth.wait, stop)
        return memoryview(self.state)[start:stop]
