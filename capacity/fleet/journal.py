"""Append to the fleet's journal, a file of lines that is durable line by line.

It answers two questions after a crash: which tags may have something running, and how much was spent. A tag's line is
durable before its start is tried, so that nothing can run that is not in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from capacity.fleet.rows import Fold, Row, decode, encode, fold
from rollcast.runtime.errors import StoreError
from rollcast.runtime.run_folder import fsync_folder


def read_journal(path: Path) -> list[Row]:
    """Return the journal's rows in order; empty where there is no journal. An unfinished last line does not count.

    Raises:
        StoreError: it cannot be read, or another line is damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _error(path, str(error)) from None
    return decode_lines(data.split(b"\n")[:-1], str(path))


def decode_lines(lines: Iterable[bytes], name: str) -> list[Row]:
    """Return the rows of the journal's lines.

    Raises:
        StoreError: a line of ``name`` is damaged.
    """
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(decode(line))
        except ValueError as error:
            raise _error(name, f"line {number}: {error}") from None
    return rows


class FleetJournal:
    """The journal, opened for appending by one process."""

    def __init__(self, path: Path, descriptor: int, content: Fold) -> None:
        self.path = path
        self.content = content
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> FleetJournal:
        """Read the existing rows, cut off an unfinished last line, and continue behind it.

        Raises:
            StoreError: it is damaged, or the disk refuses.
        """
        content = fold(read_journal(path))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.ftruncate(descriptor, _length_of_lines(path))
            os.fsync(descriptor)
            fsync_folder(path.parent)
        except OSError as error:
            raise _error(path, str(error)) from None
        return cls(path, descriptor, content)

    def append(self, row: Row) -> None:
        """Append a row, durably once this returns. Blocks on the disk.

        Raises:
            StoreError: the disk refuses.
        """
        line, length = encode(row), os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, line) != len(line):
                raise OSError("only part of the line was written")
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, length)
            raise _error(self.path, str(error)) from None
        self.content.add(row)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _length_of_lines(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1


def _error(path: Path | str, cause: str) -> StoreError:
    return StoreError(
        f"the journal of providers {path} cannot be used",
        cause=cause,
        fix="free some space, or restore it from a backup of the run; without it, running workers are stopped as "
        "orphans and their cost so far is lost",
    )
