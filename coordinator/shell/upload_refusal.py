"""Decide whether uploads are refused now, and say why: the shell refuses by it, and the dashboard shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_OF_A_FILE = "Look at the disk of the run folder: a commit there takes seconds."
_OF_A_DATABASE = "Look at the database of store.url: whether it runs, has space on its disk, and has connections left."


class Disk(Protocol):
    """The disk of the run folder."""

    @property
    def refusing(self) -> bool: ...


class Store(Protocol):
    """The run's store."""

    @property
    def is_reached(self) -> bool: ...


class Loop(Protocol):
    """The lateness of the event loop."""

    @property
    def sheds(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why uploads are refused, and what a person does about it."""

    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class UploadRefusal:
    """The conditions under which uploads are refused, and repeated by their peers.

    Args:
        is_shared: whether the store is a database that coordinators share, and not files of the run folder.
    """

    folder: Path
    disk: Disk
    store: Store
    loop: Loop
    is_shared: bool

    def now(self) -> Refusal | None:
        """Return why uploads are refused now; None if they are not."""
        if self.disk.refusing:
            return Refusal(f"the disk of {self.folder} is almost full", "Free space on it.")
        if not self.store.is_reached:
            return Refusal("the store does not answer", _OF_A_DATABASE if self.is_shared else _OF_A_FILE)
        if self.loop.sheds:
            return Refusal("this coordinator is too busy", "Stop other programs on its machine, or use gateways.")
        return None
