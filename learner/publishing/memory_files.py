"""Keep states in memory as anonymous files (memfd_create(2)), whose memory serves the next state once nothing reads it.

The devices' shards are written to such a file as to one on disk, but the kernel never writes it out.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from pathlib import Path

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
        with self._lock:
            descriptor, self._spare = self._spare, descriptor
        if descriptor >= 0:
            os.close(descriptor)
