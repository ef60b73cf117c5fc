"""Open the journal of rented workers: a file of the run folder, or rows of the store that several hosts share.

With such a store, a standby that takes over knows which machines were started. If the store has no row, the file in
this host's run folder, of an earlier release, is taken over.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from capacity.fleet.journal import FleetJournal, decode_lines, read_journal
from capacity.fleet.rows import Fold, Row, encode, fold
from coordinator.stores.postgres import PostgresStore

NAME = "fleet_journal in the store"


class Journal(Protocol):
    """The journal, which one process appends to. ``content``: the sum of its rows."""

    content: Fold

    async def write(self, row: Row) -> None:
        """Append a row, durably once this returns.

        Raises:
            StoreError: the disk or the database refuses.
        """
        ...

    def close(self) -> None:
        """Close it."""
        ...


class FileJournal:
    """The journal in a file of the run folder."""

    def __init__(self, file: FleetJournal) -> None:
        self.content = file.content
        self._file = file

    async def write(self, row: Row) -> None:
        """See Journal."""
        await asyncio.to_thread(self._file.append, row)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StoredJournal:
    """The journal in the store that hosts share."""

    def __init__(self, store: PostgresStore, content: Fold) -> None:
        self.content = content
        self._store = store

    @classmethod
    async def open(cls, store: PostgresStore, file: Path) -> StoredJournal:
        """Read the rows; if there are none, store those of the file first.

        Raises:
            StoreError: a line is damaged, or the database refuses.
        """
        rows = decode_lines(await store.fleet_journal(), NAME)
        if not rows:
            rows = await asyncio.to_thread(read_journal, file)
            await store.append_fleet_journal([encode(row) for row in rows])
        return cls(store, fold(rows))

    async def write(self, row: Row) -> None:
        """See Journal."""
        await self._store.append_fleet_journal([encode(row)])
        self.content.add(row)

    def close(self) -> None:
        """Do nothing: the store is closed by its owner."""


async def open_journal(store: object, file: Path, *, may_create: bool) -> Journal | None:
    """Open the journal of the run: in a store that hosts share, else in the file.

    Returns None if there is none and ``may_create`` is false.

    Raises:
        StoreError: it cannot be used.
    """
    if isinstance(store, PostgresStore):
        journal = await StoredJournal.open(store, file)
        return journal if may_create or journal.content.last_at else None
    return await asyncio.to_thread(_open_file, file, may_create)


def _open_file(file: Path, may_create: bool) -> FileJournal | None:
    return FileJournal(FleetJournal.open(file)) if may_create or file.exists() else None
