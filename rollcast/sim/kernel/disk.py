"""Simulate a disk that loses unsynced changes at power loss, can be full, and takes time to sync."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from rollcast.sim.kernel.process import Process, Wait


class DiskFull(Exception):
    """A write failed because the disk is full."""


@dataclass(slots=True)
class DiskState:
    """The state of a disk that faults change."""

    full: bool = False
    sync_s: float = 0.004  # median duration of one fsync
    slow_s: float = 0.0  # added to every fsync while other work keeps the disk busy


class Disk:
    """Files by name. What a killed process wrote stays; a power loss keeps only what was synced.

    At a power loss each file that was changed since its last sync keeps its old or its new content by chance.
    """

    def __init__(self, random: Random) -> None:
        self.state = DiskState()
        self._random = random
        self._files: dict[str, Any] = {}
        self._synced: dict[str, Any] = {}
        self._changed: dict[str, None] = {}

    def sync_s(self) -> float:
        """Return how many seconds a sync that begins now takes."""
        return self.state.sync_s * (0.5 + self._random.random()) + self.state.slow_s

    def write(self, name: str, content: Any) -> None:
        """Write a file to the page cache; the caller must not change ``content`` afterwards.

        Raises:
            DiskFull: the disk is full.
        """
        if self.state.full:
            raise DiskFull(name)
        self._files[name] = content
        self._changed[name] = None

    def rename(self, source: str, target: str) -> None:
        """Rename a file; the rename is durable once ``target`` is synced, which stands for the folder's fsync."""
        self._files[target] = self._files.pop(source)
        self._changed[target] = self._changed[source] = None

    def remove(self, name: str) -> None:
        """Remove a file; until its name is synced, a power loss may bring it back."""
        self._files.pop(name, None)
        self._changed[name] = None

    def read(self, name: str) -> Any:
        """Return a file's content; None if there is no such file."""
        return self._files.get(name)

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of files that begin with ``prefix``, sorted."""
        return sorted(name for name in self._files if name.startswith(prefix))

    def sync(self, name: str) -> None:
        """Make a file's content, or its removal, durable."""
        self._changed.pop(name, None)
        if name in self._files:
            self._synced[name] = self._files[name]
        else:
            self._synced.pop(name, None)

    def synced(self, name: str) -> Any:
        """Return a file's durable content; None if there is none."""
        return self._synced.get(name)

    def lose_power(self) -> None:
        """Lose the page cache; the kernel happened to have written some of it."""
        for name in list(self._changed):
            if self._random.random() < 0.5:
                self.sync(name)
        self._files = dict(self._synced)
        self._changed.clear()

    def fsync(self, process: Process, name: str) -> Wait:
        """Return a wait for an fsync of a file."""

        def begin(resume: Callable[[Any], None]) -> None:
            process.later(self.sync_s(), self._synced_now, name, resume)

        return begin

    def _synced_now(self, name: str, resume: Callable[[Any], None]) -> None:
        self.sync(name)
        resume(None)
