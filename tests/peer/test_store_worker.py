from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peer.chunk_set import ChunkSet
from peer.relay_events import (
    ChunkCorrupt,
    ChunkStored,
    EncodingKey,
    Event,
    LinkId,
    StoreFailed,
    StoreReady,
    VersionFinished,
)
from peer.store_worker import StoreWorker
from rollcast.runtime.errors import StoreError
from rollcast.wire.chunk_store import ChunkStore
from rollcast.wire.identity import Identity
from rollcast.wire.ids import ChunkIndex, EncodingId, RunId, Version
from rollcast.wire.records import parse_announcement
from rollcast.wire.stored_encoding import StoredEncoding
from tests.peer.test_relay import CHUNKS, Published

KEY = EncodingKey(Version(0), EncodingId(0))
LINK = LinkId(1)


class Setup:
    def __init__(self, folder: Path) -> None:
        self.published = Published(RunId("run-1"), Identity.generate(), 0)
        self.verified = parse_announcement(self.published.announcement)
        self.store = ChunkStore(folder / "store", keep_versions=2)
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.worker = StoreWorker(self.store, self.events.put_nowait)

    def begin(self) -> None:
        self.worker.begin(KEY, self.verified, self.verified.keyframe, self.published.hashes)

    def write(self, index: int, payload: bytes | None = None) -> None:
        self.worker.write(LINK, KEY, ChunkIndex(index), payload or self.published.chunk(index))

    async def next(self, count: int) -> list[Event]:
        async with asyncio.timeout(5.0):
            return [await self.events.get() for _ in range(count)]


@asynccontextmanager
async def working(folder: Path) -> AsyncIterator[Setup]:
    setup = Setup(folder)
    running = asyncio.ensure_future(setup.worker.run())
    try:
        yield setup
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        setup.worker.close()
        setup.store.close()


async def test_jobs_are_answered_in_order(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        setup.begin()
        for index in range(CHUNKS):
            setup.write(index)
        setup.worker.finish(KEY)
        sizes = [len(setup.published.chunk(index)) for index in range(CHUNKS)]
        assert await setup.next(CHUNKS + 2) == [
            StoreReady(KEY, ChunkSet(CHUNKS).bitmap),
            *(ChunkStored(LINK, KEY, ChunkIndex(index), size) for index, size in enumerate(sizes)),
            VersionFinished(KEY),
        ]
        assert await setup.worker.read(KEY, ChunkIndex(3)) == setup.published.chunk(3)


async def test_a_corrupt_chunk_is_named_and_not_kept(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        setup.begin()
        setup.write(1, b"wrong")
        assert (await setup.next(2))[1] == ChunkCorrupt(LINK, KEY, ChunkIndex(1))
        assert await setup.worker.read(KEY, ChunkIndex(1)) is None


async def test_a_disk_that_refuses_fails_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise StoreError("no space left")

    async with working(tmp_path) as setup:
        setup.begin()
        await setup.next(1)
        monkeypatch.setattr(StoredEncoding, "write", refuse)
        setup.write(0)
        assert await setup.next(1) == [StoreFailed(KEY, "no space left", link=LINK)]


async def test_an_abandoned_version_gives_its_space_back(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        setup.begin()
        setup.worker.discard(KEY)
        setup.write(0)
        assert isinstance((await setup.next(2))[1], StoreFailed)
        assert not (tmp_path / "store" / "0").exists()
