"""A disk that forgets at power loss what was not synced, fills up, and takes its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from rollcast.sim.kernel.process import Process, Wait


class DiskFull(Exception):
    """No room for what was to be written."""


@dataclass(slots=True)
class DiskState:
    """What faults change."""

    full: bool = False
    sync_s: float = 0.004  # of one fsync
    slow_s: float = 0.0  # added to each while something else keeps the disk busy


class Disk:
    """Files by name. A process that dies leaves what it wrote; a machine that dies only what it synced.

    At power loss each file that was changed since its last sync keeps its old or its new content by chance.
    """

    def __init__(self, random: Random) -> None:
        self.state = DiskState()
        self._random = random
        self._files: dict[str, Any] = {}
        self._synced: dict[str, Any] = {}
        self._changed: dict[str, None] = {}

    def sync_s(self) -> float:
        """How long a sync begun now takes."""
        return self.state.sync_s * (0.5 + self._random.random()) + self.state.slow_s

    def write(self, name: str, content: Any) -> None:
        """Change a file in the page cache; the content must not be changed afterwards.

        Raises:
            DiskFull: it is.
        """
        if self.state.full:
            raise DiskFull(name)
        self._files[name] = content
        self._changed[name] = None

    def rename(self, source: str, target: str) -> None:
        """Give a file another name; durable once ``target`` is synced (the folder's fsync)."""
        self._files[target] = self._files.pop(source)
        self._changed[target] = self._changed[source] = None

    def remove(self, name: str) -> None:
        """Forget a file; whether a power loss brings it back is chance until the name is synced."""
        self._files.pop(name, None)
        self._changed[name] = None

    def read(self, name: str) -> Any:
        """A file's content, None where there is none."""
        return self._files.get(name)

    def names(self, prefix: str = "") -> list[str]:
        """Names that begin so, sorted."""
        return sorted(name for name in self._files if name.startswith(prefix))

    def sync(self, name: str) -> None:
        """An fsync of this file has ended."""
        self._changed.pop(name, None)
        if name in self._files:
            self._synced[name] = self._files[name]
        else:
            self._synced.pop(name, None)

    def synced(self, name: str) -> Any:
        """What a power loss leaves of it for certain."""
        return self._synced.get(name)

    def lose_power(self) -> None:
        """The page cache is gone; some of it happened to be written."""
        for name in list(self._changed):
            if self._random.random() < 0.5:
                self.sync(name)
        self._files = dict(self._synced)
        self._changed.clear()

    def fsync(self, process: Process, name: str) -> Wait:
        """Sync a file; takes its time."""

        def begin(go_on: Callable[[Any], None]) -> None:
            process.later(self.sync_s(), self._synced_now, name, go_on)

        return begin

    def _synced_now(self, name: str, go_on: Callable[[Any], None]) -> None:
        self.sync(name)
        go_on(None)
