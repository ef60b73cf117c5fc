"""Test that a coordinator that takes over knows which machines were started, and which ones operators asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from capacity.fleet.events import Spent
from capacity.fleet.rows import JoinedRow, MarkRow, Row, encode
from coordinator.fleet.applied import AppliedWorkers
from coordinator.fleet.journal import FileJournal, StoredJournal, open_journal
from coordinator.ledger.saved_orders import APPLIED
from coordinator.stores.postgres import PostgresStore
from coordinator.stores.sqlite import Ledger
from rollcast.cli.capacity.cost import _rows
from rollcast.runtime.errors import StoreError
from rollcast.runtime.run_folder import RunFolder
from tests.coordinator.stores.postgres_fixtures import leading_store, needs_postgres, new_database

ROWS: tuple[Row, ...] = (
    JoinedRow(1.0, "tag", "peer"),
    MarkRow(2.0, {"ssh": Spent(1.5, 0.0, 0.0)}, {}),
    MarkRow(3.0, {"ssh": Spent(0.5, 0.0, 0.0)}, {}),
)


async def test_with_sqlite_the_journal_is_a_file(tmp_path: Path) -> None:
    ledger, path = Ledger.open(tmp_path / "store.sqlite"), tmp_path / "providers" / "journal.jsonl"
    assert await open_journal(ledger, path, may_create=False) is None
    journal = await open_journal(ledger, path, may_create=True)
    assert isinstance(journal, FileJournal)
    await journal.write(ROWS[0])
    assert path.read_bytes() == encode(ROWS[0])
    assert journal.content.peers == {"tag": "peer"}
    journal.close()
    await ledger.close()


@pytest.mark.postgres
@needs_postgres
class TestSharedStore:
    async def test_the_coordinator_that_takes_over_has_the_journal(self, tmp_path: Path) -> None:
        url, nowhere = await asyncio.to_thread(new_database), tmp_path / "none"
        first = await leading_store(url)
        assert await open_journal(first, nowhere, may_create=False) is None
        journal = await open_journal(first, nowhere, may_create=True)
        assert isinstance(journal, StoredJournal)
        for row in ROWS:
            await journal.write(row)
        second = await leading_store(url)
        taken_over = await open_journal(second, nowhere, may_create=False)
        assert taken_over is not None
        assert taken_over.content == journal.content
        assert taken_over.content.marked == {"ssh": Spent(2.0, 0.0, 0.0)}
        with pytest.raises(StoreError, match="leads no longer"):
            await journal.write(ROWS[0])
        assert journal.content == taken_over.content  # what was refused does not count
        await self._closed(first, second)
        folder = RunFolder(tmp_path)
        folder.store_url.write_text(url)
        assert _rows(tmp_path) == list(ROWS)

    async def test_a_journal_of_an_earlier_release_is_taken_over_once(self, tmp_path: Path) -> None:
        store = await leading_store(await asyncio.to_thread(new_database))
        file = tmp_path / "journal.jsonl"
        file.write_bytes(b"".join(map(encode, ROWS)))
        for _ in range(2):
            assert await open_journal(store, file, may_create=False) is not None
            assert await store.fleet_journal() == list(map(encode, ROWS))
        await self._closed(store)

    async def test_a_damaged_row_is_an_error(self, tmp_path: Path) -> None:
        store = await leading_store(await asyncio.to_thread(new_database))
        await store.append_fleet_journal([b"{}"])
        with pytest.raises(StoreError, match="line 1"):
            await open_journal(store, tmp_path / "none", may_create=False)
        await self._closed(store)

    async def _closed(self, *stores: PostgresStore) -> None:
        for store in stores:
            await store.close()


async def test_the_applied_set_of_a_shared_store_goes_with_it(tmp_path: Path) -> None:
    store, path = Ledger.open(tmp_path / "store.sqlite"), tmp_path / "applied.json"
    by_file = AppliedWorkers.load(path)
    await by_file.change(["old"], [], "before the move")
    applied = await AppliedWorkers.stored(store, path)
    await applied.change(["new"], [], "asked for")
    path.unlink()
    elsewhere = await AppliedWorkers.stored(store, path)
    assert elsewhere.reasons == {"old": "before the move", "new": "asked for"}
    await store.set_meta(APPLIED, "{}")
    with pytest.raises(StoreError, match="the store"):
        await AppliedWorkers.stored(store, path)
    await store.close()
