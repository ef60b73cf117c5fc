"""Simulate a disk in memory that loses power: unsynced data survives whole, in parts, or not at all.

The disk is a VFS of SQLite, made with APSW. A file is the content last synced, and the writes since. At a power loss
every 512 bytes of every such write are kept or lost at random, whatever their order, as disks and file systems may do;
a file that was created and never synced may be lost. There is no shared memory, so WAL needs
``locking_mode = EXCLUSIVE``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import apsw

TEAR_BYTES = 512  # bytes that a disk writes as a whole or not at all
SECTOR_BYTES = 4096
#: What SQLite's own VFS reports of a disk: a write does not damage the bytes next to it.
CHARACTERISTICS = apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


class PowerLoss(apsw.IOError):
    """The simulated disk has lost power."""


@dataclass(slots=True)
class _Content:
    """One file: the content that is synced, and the changes since."""

    synced: bytes | None = None  # None: the file did not exist
    current: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes] | int] = field(default_factory=list)  # writes, or sizes that the file was cut to

    def write(self, offset: int, data: bytes) -> None:
        """Write the data; a gap between the end of the file and the offset is filled with zeros."""
        _place(self.current, offset, data)
        self.unsynced.append((offset, bytes(data)))

    def truncate(self, size: int) -> None:
        del self.current[size:]
        self.unsynced.append(size)

    def sync(self) -> None:
        self.synced = bytes(self.current)
        self.unsynced.clear()

    def lose(self, rng: random.Random) -> bool:
        """Discard unsynced changes at random; returns whether the file still exists."""
        if self.synced is None and rng.random() < 0.5:
            return False
        kept = bytearray(self.synced or b"")
        share = rng.choice((0.0, 0.5, 0.9, 1.0))
        for change in self.unsynced:
            if isinstance(change, int):
                if rng.random() < share:
                    del kept[change:]
                continue
            offset, data = change
            for start in range(0, len(data), TEAR_BYTES):
                if rng.random() < share:
                    _place(kept, offset + start, data[start : start + TEAR_BYTES])
        self.current = kept
        self.sync()
        return True


class ForgetfulDisk(apsw.VFS):
    """A disk in memory whose power fails after ``writes_left`` writes, syncs and deletions (None: it does not)."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self.files: dict[str, _Content] = {}
        self.writes_left: int | None = None
        self.syncs = 0
        self.is_off = False

    def lose_power(self, rng: random.Random) -> None:
        """Discard unsynced data at random; the disk can be used again afterwards."""
        self.is_off, self.writes_left = False, None
        self.files = {name: content for name, content in self.files.items() if content.lose(rng)}

    def spend(self) -> None:
        """Count one write.

        Raises:
            PowerLoss: the power has failed, so the write is not made.
        """
        if not self._has_power_for_one_more():
            raise PowerLoss("the simulated disk has lost power")

    def _has_power_for_one_more(self) -> bool:
        if self.writes_left is not None:
            self.writes_left -= 1
            self.is_off = self.is_off or self.writes_left < 0
        return not self.is_off

    # ---------------------------------------------------------------- sqlite3_vfs

    def xOpen(self, name: Any, flags: list[int]) -> _OpenFile:  # type: ignore[override]  # any object with these methods will do
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        if path is None:  # a temporary file of SQLite's own
            return _OpenFile(self, _Content())
        return _OpenFile(self, self.files.setdefault(path, _Content()))

    def xDelete(self, name: str, sync_folder: bool) -> None:
        """Delete a file; without power do nothing and raise nothing: SQLite deletes on close, which must not fail."""
        if self._has_power_for_one_more():
            self.files.pop(name, None)

    def xAccess(self, name: str, flags: int) -> bool:
        return name in self.files

    def xFullPathname(self, name: str) -> str:
        return name


class _OpenFile:
    """An sqlite3_file over one content. Only one connection has it open at a time, so locks do nothing."""

    def __init__(self, disk: ForgetfulDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content

    def xRead(self, amount: int, offset: int) -> bytes:
        if self._disk.is_off:
            raise PowerLoss("the simulated disk has lost power")
        return bytes(self._content.current[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.spend()
        self._content.write(offset, data)

    def xTruncate(self, size: int) -> None:
        self._disk.spend()
        self._content.truncate(size)

    def xSync(self, flags: int) -> None:
        self._disk.spend()
        self._disk.syncs += 1
        self._content.sync()

    def xFileSize(self) -> int:
        return len(self._content.current)

    def xSectorSize(self) -> int:
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        return CHARACTERISTICS

    def xFileControl(self, operation: int, pointer: int) -> bool:
        return False

    def xLock(self, level: int) -> None:
        """Do nothing: there is no other connection."""

    def xUnlock(self, level: int) -> None:
        """Do nothing: there is no other connection."""

    def xCheckReservedLock(self) -> bool:
        return False

    def xClose(self) -> None:
        """Do nothing: the disk keeps the content."""


def _place(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
