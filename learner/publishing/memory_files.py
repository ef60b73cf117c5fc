"""Keep states in memory as anonymous files (memfd_create(2)), whose memory serves the next state once nothing reads it.

The devices' shards are written to such a file as to one on disk, but the kernel never writes it out.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from rollcast.wire.versions.state_memory import fits_in_memory


class MemoryFile:
    """An anonymous file. Its memory is given back once neither this object nor a mapping of it exists.

    Attributes:
        descriptor: it can be read and written.
        path: a name under which this process can open the file.
    """

    def __init__(self, files: MemoryFiles, descriptor: int) -> None:
        self.descriptor = descriptor
        self.path = Path(f"/proc/self/fd/{descriptor}")
        weakref.finalize(self, files.give_back, descriptor)

    def map(self, size_bytes: int) -> memoryview:
        """Return the first bytes of the file, read-only, with the memory until the view is gone.

        Raises:
            OSError: there is not enough memory.
        """
        mapped = MemoryMap(self.descriptor, size_bytes, access=mmap.ACCESS_READ)
        mapped.file = self
        return memoryview(mapped)


class MemoryMap(mmap.mmap):
    """The mapping of a memory file."""

    file: MemoryFile


GIVEN_BACK_BYTES = 8 << 20
"""Bytes that a spent state frees at a time, but for the last."""


class SpentState:
    """A state in memory that is read for the last time, in ascending order; its memory is freed behind the reader.

    So a state and the one that follows from it take the memory of one, where the second is written as the first is
    read.

    Attributes:
        view: its bytes; those that were passed read as zeros.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, file: MemoryFile, size_bytes: int) -> None:
        self.view = file.map(size_bytes)
        self._removable = mmap.mmap(file.descriptor, size_bytes)  # pages are removed through a mapping that may write
        self._freed_bytes = 0

    def passed(self, until_bytes: int) -> None:
        """Free the memory before this offset, below which nothing is read any more."""
        size_bytes = len(self.view)
        stop = until_bytes if until_bytes == size_bytes else until_bytes // GIVEN_BACK_BYTES * GIVEN_BACK_BYTES
        if stop > self._freed_bytes:
            self._removable.madvise(mmap.MADV_REMOVE, self._freed_bytes, stop - self._freed_bytes)
            self._freed_bytes = stop


def _references(states: Mapping[Any, tuple[Any, Any]], key: Any) -> tuple[int, int]:
    return sys.getrefcount(states[key]), sys.getrefcount(states[key][1])


_ALONE = _references({0: (None, memoryview(bytearray(1)))}, 0)
"""References to an entry, and to the state in it, that only the dictionary holds."""


def take_unread(states: MutableMapping[Any, tuple[Any, Any]], key: Any) -> MemoryFile | None:
    """Remove a state in memory that nothing else reads from a dictionary of (anything, state), and return its file.

    Returns None, and removes nothing, if it is not in memory or may be read elsewhere.
    """
    mapped = getattr(states[key][1], "obj", None)
    if not isinstance(mapped, MemoryMap) or _references(states, key) != _ALONE:
        return None
    record, state = states.pop(key)
    state.release()
    try:
        mapped.close()  # it refuses while any other view of it exists
    except BufferError:
        states[key] = record, memoryview(mapped)
        return None
    return mapped.file


class MemoryFiles:
    """Opens memory files; that of a state that is no longer used is opened again for the next one.

    Memory that is used again costs no page faults, which take as long as the writing.
    """

    def __init__(self) -> None:
        self._spare = -1
        self._lock = threading.RLock()  # reentrant: the garbage collector may give a file back at any time

    def open(self, size_bytes: int) -> MemoryFile | None:
        """Return a file for a state of this size; None if there is not enough memory."""
        with self._lock:
            descriptor, self._spare = self._spare, -1
        if descriptor < 0:
            if not fits_in_memory(size_bytes):
                return None
            descriptor = os.memfd_create("rollcast-version")
        return MemoryFile(self, descriptor)

    def give_back(self, descriptor: int) -> None:
        """Take the descriptor of a file that is no longer used."""
        found = os.fstat(descriptor)
        if 512 * found.st_blocks < found.st_size:  # spent: the next state would need as much memory as in a new file
            os.close(descriptor)
            return
        with self._lock:
            descriptor, self._spare = self._spare, descriptor
        if descriptor >= 0:
            os.close(descriptor)
