from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peer.relay.read_ahead import ReadAhead
from rollcast.wire.ids import ChunkIndex
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.peer.relay.relay_steps import key_of
from tests.peer.versions import CHUNKS, LEARNER, RUN_ID, Published

FIRST = Published(RUN_ID, LEARNER, 1)
KEY = key_of(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChunkStore]:
    store = ChunkStore(tmp_path, keep_versions=2)
    FIRST.put(store)
    yield store
    store.close()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The runs that are read: the first chunk of each, and how many."""
    read: list[tuple[int, int]] = []
    original = StoredEncoding.read_into

    def counted(self: StoredEncoding, first: int, views: list[memoryview]) -> None:
        read.append((first, len(views)))
        original(self, first, views)

    monkeypatch.setattr(StoredEncoding, "read_into", counted)
    return read


async def test_a_reader_in_order_gets_ever_longer_runs(store: ChunkStore, runs: list[tuple[int, int]]) -> None:
    with ThreadPoolExecutor(1) as executor:
        ahead = ReadAhead(store, executor)
        async with asyncio.timeout(30.0):
            for index in range(CHUNKS):
                payload = ahead.get(KEY, index) or await ahead.read(KEY, ChunkIndex(index))
                assert payload is not None
                assert bytes(payload) == FIRST.chunk(index)
    assert runs[:3] == [(0, 1), (1, 2), (3, 4)], "each twice as long as the one before"
    assert sum(count for _, count in runs) == CHUNKS


async def test_a_reader_out_of_order_gets_no_more_than_it_asks_for(
    store: ChunkStore, runs: list[tuple[int, int]]
) -> None:
    with ThreadPoolExecutor(1) as executor:
        ahead = ReadAhead(store, executor)
        async with asyncio.timeout(30.0):
            for index in (5, 2, 7, 0):
                await ahead.read(KEY, ChunkIndex(index))
    assert runs == [(5, 1), (2, 1), (7, 1), (0, 1)]


async def test_several_readers_of_a_chunk_share_one_read(store: ChunkStore, runs: list[tuple[int, int]]) -> None:
    with ThreadPoolExecutor(1) as executor:
        ahead = ReadAhead(store, executor)
        async with asyncio.timeout(30.0):
            both = await asyncio.gather(ahead.read(KEY, ChunkIndex(4)), ahead.read(KEY, ChunkIndex(4)))
    assert [bytes(one or b"") for one in both] == [FIRST.chunk(4)] * 2
    assert runs == [(4, 1)]


async def test_what_is_removed_or_damaged_is_not_served(store: ChunkStore) -> None:
    stored = store.get(1)
    assert stored is not None
    with ThreadPoolExecutor(1) as executor:
        ahead = ReadAhead(store, executor)
        async with asyncio.timeout(30.0):
            assert await ahead.read(KEY, ChunkIndex(0)) is not None
            ahead.discard([KEY])
            assert ahead.get(KEY, 0) is None
            assert await ahead.read(key_of(9), ChunkIndex(0)) is None
            path = next(stored._folder.glob("0.data"))
            path.chmod(0o644)
            with path.open("r+b") as file:
                file.write(b"\xff\x00\xff")
            assert await ahead.read(KEY, ChunkIndex(0)) is None
