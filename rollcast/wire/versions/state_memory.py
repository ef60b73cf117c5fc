"""Keep a state in memory, and write it to disk in the background.

The memory is an anonymous file (memfd_create(2)): it can be read and mapped like a file on disk, and the kernel never
writes it out. A file on disk that is changed in place would not do: one step changes 1 % of the items at random places,
which touches nearly every page, so the kernel would write the whole state back at each step.
"""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import structlog

from rollcast.runtime.errors import StoreError
from rollcast.runtime.run_folder import fsync_folder
from rollcast.wire.ids import Version
from rollcast.wire.versions.files import preallocate, write_all

log = structlog.get_logger()

_CGROUP = Path("/sys/fs/cgroup")  # cgroup v2, as mounted in a container
_MEMORY_SHARE_MAX = 0.5  # of the memory that is available now; the rest is for the engine and other programs
_WRITE_BYTES = 8 << 20


class StateMemory:
    """Bytes of a state in memory, writable.

    Args:
        size_bytes: the size of the state; all of it is reserved here.

    Attributes:
        descriptor: the descriptor of the anonymous file, closed by ``close``.
        view: its bytes, mapped once; versions that replace each other in it cause no page faults.

    Raises:
        OSError: there is not enough memory.
    """

    def __init__(self, size_bytes: int) -> None:
        self.descriptor = os.memfd_create("rollcast-state")
        try:
            preallocate(self.descriptor, size_bytes)
            self.view = memoryview(mmap.mmap(self.descriptor, size_bytes))
        except BaseException:
            os.close(self.descriptor)
            raise

    @property
    def size_bytes(self) -> int:
        """Return the size of the state."""
        return len(self.view)

    def close(self) -> None:
        """Close the descriptor; the memory is freed once no mapping of it is left. May be called again."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class BackgroundCopy:
    """A copy of a state in memory that is being written to a file, in order and in parts.

    The state may be changed in place meanwhile, in ascending order too, if ``ensure`` is called before each change.

    Args:
        memory: the state.
        path: the file to write; an existing one is replaced.

    Raises:
        OSError: the disk is full or read-only.
    """

    def __init__(self, memory: StateMemory, path: Path) -> None:
        self.path = path
        self._view = memory.view
        self._done_bytes = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            preallocate(self._descriptor, len(self._view))
        except OSError:
            self.close()
            raise

    @property
    def complete(self) -> bool:
        """Whether all bytes are written; they are not durable yet."""
        return self._done_bytes == len(self._view)

    def ensure(self, until_bytes: int) -> None:
        """Write the bytes before ``until_bytes`` that are not written yet.

        Raises:
            OSError: the disk refuses.
        """
        while self._done_bytes < min(until_bytes, len(self._view)):
            stop = min(until_bytes, self._done_bytes + _WRITE_BYTES, len(self._view))
            write_all(self._descriptor, self._view[self._done_bytes : stop], self._done_bytes)
            self._done_bytes = stop

    def advance(self, budget_bytes: int) -> None:
        """Write the next ``budget_bytes``.

        Raises:
            OSError: the disk refuses.
        """
        self.ensure(self._done_bytes + budget_bytes)

    def make_durable(self, path: Path) -> None:
        """Make the complete copy durable, then rename it to ``path``.

        Raises:
            OSError: the disk refuses.
        """
        os.fsync(self._descriptor)
        os.replace(self.path, path)
        fsync_folder(path.parent)

    def close(self) -> None:
        """Close the file, which stays on disk. May be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class BackgroundCopies:
    """The copies of states in memory that are being written, by version. A copy that fails is given up."""

    def __init__(self) -> None:
        self._copies: dict[Version, BackgroundCopy] = {}

    def __contains__(self, version: Version) -> bool:
        return version in self._copies

    def __bool__(self) -> bool:
        return bool(self._copies)

    def begin(self, version: Version, memory: StateMemory, path: Path) -> None:
        """Begin to copy the state of a version to ``path``."""
        try:
            self._copies[version] = BackgroundCopy(memory, path)
        except OSError as error:
            self._give_up(version, error)

    def before_change(self, version: Version, until_bytes: int) -> None:
        """Copy the bytes before ``until_bytes``, which are about to be changed."""
        copy = self._copies.get(version)
        try:
            if copy is not None:
                copy.ensure(until_bytes)
        except OSError as error:
            self._give_up(version, error)

    def advance(self, budget_bytes: int) -> tuple[bool, Version | None]:
        """Write the next ``budget_bytes`` of a copy, or make a complete one durable under the suffix ``.data``.

        Returns:
            Whether anything was done, and the version whose copy is durable now, if any.
        """
        version, copy = next(iter(self._copies.items()), (None, None))
        if version is None or copy is None:
            return False, None
        try:
            if not copy.complete:
                copy.advance(budget_bytes)
                return True, None
            copy.make_durable(copy.path.with_suffix(".data"))
        except OSError as error:
            self._give_up(version, error)
            return True, None
        self.drop(version)
        return True, version

    def drop(self, version: Version) -> None:
        """Stop copying a version, if it is being copied; the file stays."""
        copy = self._copies.pop(version, None)
        if copy is not None:
            copy.close()

    def close(self) -> None:
        """Stop copying."""
        for version in list(self._copies):
            self.drop(version)

    def _give_up(self, version: Version, error: OSError) -> None:
        log.warning("a state in memory is not copied to disk, a later one will be", version=version, reason=str(error))
        copy = self._copies.get(version)
        self.drop(version)
        if copy is not None:
            with suppress(OSError):
                copy.path.unlink(missing_ok=True)


def memory_for(size_bytes: int) -> StateMemory:
    """Return memory for a state that must not be on disk.

    Raises:
        StoreError: there is not enough.
    """
    if fits_in_memory(size_bytes):
        with suppress(OSError):
            return StateMemory(size_bytes)
    raise StoreError(
        f"there is not enough memory for {size_bytes / 2**30:.2f} GiB of weights",
        cause="they are kept in memory alone (store.memory_only), and may take half of what is available",
        fix="free memory, or set store.memory_only = false",
    )


def fits_in_memory(size_bytes: int) -> bool:
    """Return whether a state of this size may be kept in memory: on Linux, and if at least as much stays available."""
    return sys.platform == "linux" and size_bytes <= _MEMORY_SHARE_MAX * _available_bytes()


def _available_bytes() -> int:
    """Return the bytes of memory that this process may still take, within the limit of its container."""
    available = int(psutil.virtual_memory().available)
    try:
        limit_bytes = int((_CGROUP / "memory.max").read_text())
        used_bytes = int((_CGROUP / "memory.current").read_text())
        statistics = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return available  # no limit ("max"), or not in a container of cgroup v2
    return min(available, limit_bytes - used_bytes + int(statistics.get("inactive_file", 0)))
