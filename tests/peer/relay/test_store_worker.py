from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peer.links.neighbours import EncodingKey
from peer.mirrors.publish import MirrorFolder
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import StoreFailed, StoreReady, VersionFinished, VersionRestored
from peer.relay.store_worker import EncodingsRemoved, StateMade, StateNotMade, StoreEvent, StoreWorker, keep_verified
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import ChunkIndex
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID, VerifiedVersion, verify_announcement
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.peer.relay.relay_steps import key_of
from tests.peer.relay.relay_world import disk_full
from tests.peer.versions import CHUNK_BYTES, CHUNKS, LEARNER, RUN_ID, Published

FIRST = Published(RUN_ID, LEARNER, 1)
SECOND = Published(RUN_ID, LEARNER, 2, base=FIRST)
KEY, STEP = key_of(1), key_of(2, PREVIOUS_ID)
NOTHING = ChunkSet(CHUNKS).bitmap


class Setup:
    def __init__(self, folder: Path, durable_first: bool, idle_s: float, mirrored: bool) -> None:
        self.store = ChunkStore(folder / "store", keep_versions=2, in_memory=True)
        self.events: asyncio.Queue[StoreEvent] = asyncio.Queue()
        self.worker = StoreWorker(
            self.store,
            self.events.put_nowait,
            durable_first=durable_first,
            idle_s=idle_s,
            mirror_folder=MirrorFolder(folder / "mirror", folder / "store", 2) if mirrored else None,
        )

    def begin(self, published: Published, encoding_id: int = KEYFRAME_ID) -> EncodingKey:
        manifest = published.verified.manifest(encoding_id)
        assert manifest is not None
        key = EncodingKey(manifest.version, manifest.encoding_id)
        self.worker.begin(key, published.verified, manifest, published.chunk_lists[manifest.encoding_id])
        return key

    def write(self, published: Published, key: EncodingKey) -> None:
        manifest = published.verified.manifest(key.encoding_id)
        assert manifest is not None
        for index in range(manifest.chunk_count):
            self.worker.write(key, ChunkIndex(index), published.chunk(index, key.encoding_id))

    def make_second(self) -> None:
        """Compute the second state from the first and a delta: StoreReady, VersionFinished and StateMade follow."""
        FIRST.put(self.store)
        self.begin(SECOND, PREVIOUS_ID)
        self.write(SECOND, STEP)
        self.worker.finish(STEP)
        self.worker.materialise(STEP)

    async def next(self, count: int = 1) -> list[StoreEvent]:
        async with asyncio.timeout(5.0):
            return [await self.events.get() for _ in range(count)]

    async def done(self) -> list[StoreEvent]:
        """Return the further events once all requested work is done."""
        self.begin(FIRST)
        events: list[StoreEvent] = []
        while not isinstance(event := (await self.next())[0], StoreReady):
            events.append(event)
        return events


@asynccontextmanager
async def working(
    folder: Path, *, durable_first: bool = False, idle_s: float = 0.0, mirrored: bool = False
) -> AsyncIterator[Setup]:
    setup = Setup(folder, durable_first, idle_s, mirrored)
    running = asyncio.ensure_future(setup.worker.run())
    try:
        yield setup
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        setup.worker.close()
        setup.store.close()


@pytest.mark.parametrize("durable_first", [True, False])
async def test_a_version_is_stored_verified_and_durable(tmp_path: Path, durable_first: bool) -> None:
    async with working(tmp_path, durable_first=durable_first) as setup:
        setup.begin(FIRST)
        setup.write(FIRST, KEY)
        assert setup.worker.memory.get(KEY, 3) == FIRST.chunk(3)
        setup.worker.finish(KEY)
        assert await setup.next(2) == [StoreReady(KEY, NOTHING), VersionFinished(KEY)]
        assert await setup.done() == []
        assert setup.store.versions() == [1]
        assert await setup.worker.ahead.read(KEY, ChunkIndex(3)) == FIRST.chunk(3)
        assert await setup.worker.ahead.read(key_of(9), ChunkIndex(3)) is None


async def test_an_encoding_of_an_earlier_process_is_found(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        setup.begin(FIRST)
        for index in (0, 7):
            setup.worker.write(KEY, ChunkIndex(index), FIRST.chunk(index))
        assert await setup.next() == [StoreReady(KEY, NOTHING)]
        await setup.done()
    async with working(tmp_path) as setup:
        setup.begin(FIRST)
        assert await setup.next() == [StoreReady(KEY, ChunkSet(CHUNKS, [0, 7]).bitmap)]


async def test_a_state_is_made_of_a_delta_and_can_be_served(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        setup.make_second()
        ready, *others = await setup.next(4)
        assert isinstance(ready, StoreReady)
        assert others == [VersionFinished(STEP), StateMade(STEP), VersionRestored(key_of(2), CHUNKS, CHUNK_BYTES)]
        assert await setup.worker.ahead.read(key_of(2), ChunkIndex(6)) == SECOND.chunk(6)
        assert setup.store.versions() == [1, 2]


async def test_a_keyframe_is_listed_only_when_there_is_nothing_else_to_do(tmp_path: Path) -> None:
    async with working(tmp_path, idle_s=60.0) as setup:
        setup.make_second()
        await setup.next(3)
        assert await setup.done() == []
        made = setup.store.get(2)
        assert made is not None
        assert (made.finished, made.listed) == (True, False)


async def test_a_keyframe_is_listed_in_the_end_however_busy_the_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.relay.store_worker._WAITS_S_MOST", 0.0)
    async with working(tmp_path, idle_s=60.0) as setup:
        setup.make_second()
        assert (await setup.next(4))[3] == VersionRestored(key_of(2), CHUNKS, CHUNK_BYTES)


async def test_a_requested_keyframe_is_listed_at_once(tmp_path: Path) -> None:
    async with working(tmp_path, idle_s=60.0) as setup:
        setup.make_second()
        assert (await setup.next(3))[2] == StateMade(STEP)
        setup.worker.list_chunks(KEY)
        assert await setup.done() == []
        setup.worker.list_chunks(key_of(2))
        setup.worker.list_chunks(key_of(2))
        assert await setup.next() == [VersionRestored(key_of(2), CHUNKS, CHUNK_BYTES)]
        assert await setup.done() == []


async def test_a_keyframe_that_a_delta_changes_is_not_listed_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = Published(RUN_ID, LEARNER, 3, base=SECOND)
    async with working(tmp_path, idle_s=60.0) as setup:
        setup.make_second()
        assert (await setup.next(3))[2] == StateMade(STEP)
        key = setup.begin(third, PREVIOUS_ID)
        setup.worker.write(key, ChunkIndex(0), third.chunk(0, PREVIOUS_ID))
        assert isinstance((await setup.next())[0], StoreReady)
        second = setup.store.get(2)
        assert second is not None
        assert not second.changing
        setup.worker.announced(third.version)
        async with asyncio.timeout(5.0):
            while not second.changing:
                assert await setup.done() == []
        monkeypatch.setattr(setup.worker, "_idle_s", 0.0)
        assert await setup.done() == []
        await asyncio.sleep(0.05)
        assert await setup.done() == []
        assert second.changing
        setup.worker.list_chunks(key_of(2))
        assert await setup.next() == [VersionRestored(key_of(2), CHUNKS, CHUNK_BYTES)]
        assert await setup.worker.ahead.read(key_of(2), ChunkIndex(6)) == SECOND.chunk(6)
        assert not second.changing


async def test_chunks_that_wait_are_written_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[int, int]] = []
    write = StoredEncoding.write_verified

    def noted(encoding: StoredEncoding, first: int, chunks: Sequence[BytesLike]) -> None:
        runs.append((first, len(chunks)))
        write(encoding, first, chunks)

    monkeypatch.setattr(StoredEncoding, "write_verified", noted)
    monkeypatch.setattr("peer.relay.store_worker._WRITE_BYTES_MOST", 3 * CHUNK_BYTES)
    async with working(tmp_path) as setup:
        setup.begin(FIRST)
        for index in (3, 1, 0, 2, 4):
            setup.worker.write(KEY, ChunkIndex(index), FIRST.chunk(index, KEYFRAME_ID))
        await setup.next()
        await setup.done()
    assert runs == [(0, 2), (3, 1), (2, 1), (4, 1)]


async def test_an_answer_does_not_wait_for_later_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_finish = threading.Event()
    finish = StoredEncoding.finish

    def finish_when_released(encoding: StoredEncoding) -> None:
        assert may_finish.wait(5.0)
        finish(encoding)

    monkeypatch.setattr(StoredEncoding, "finish", finish_when_released)
    async with working(tmp_path) as setup:
        setup.begin(FIRST)
        setup.write(FIRST, KEY)
        setup.worker.finish(KEY)
        assert await setup.next(2) == [StoreReady(KEY, NOTHING), VersionFinished(KEY)]
        assert setup.store.versions() == []
        may_finish.set()
        await setup.done()
        assert setup.store.versions() == [1]


async def test_a_delta_that_leads_elsewhere_is_named(tmp_path: Path) -> None:
    broken = Published(RUN_ID, LEARNER, 2, base=FIRST, broken=True)
    async with working(tmp_path) as setup:
        FIRST.put(setup.store)
        setup.begin(broken, PREVIOUS_ID)
        setup.write(broken, STEP)
        setup.worker.finish(STEP)
        setup.worker.materialise(STEP)
        events = await setup.next(3)
        assert events[1] == VersionFinished(STEP)
        assert isinstance(events[2], StateNotMade)
        assert events[2].key == STEP
        assert await setup.done() == []
        assert setup.store.versions() == [1]


async def test_the_base_whose_memory_was_taken_is_named(tmp_path: Path) -> None:
    third = Published(RUN_ID, LEARNER, 3, base=SECOND)
    wrong = Published(RUN_ID, LEARNER, 4, base=third, broken=True)
    async with working(tmp_path) as setup:
        setup.make_second()
        assert (await setup.next(3))[2] == StateMade(STEP)
        for published, spared in ((third, frozenset({key_of(2)})), (wrong, frozenset())):
            key = setup.begin(published, PREVIOUS_ID)
            setup.write(published, key)
            setup.worker.finish(key)
            setup.worker.materialise(key, spared)
            answer = (await setup.next(3))[2]
            assert isinstance(answer, StateMade | StateNotMade)
            assert answer.base_taken == (None if spared else key_of(3))
        assert setup.store.versions() == [1, 2]


async def test_a_state_that_is_not_the_signed_one_never_becomes_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(tmp_path) as setup:
        setup.begin(FIRST)
        setup.write(FIRST, KEY)
        await setup.next()
        stored = setup.store.get(1)
        assert stored is not None
        other = VerifiedVersion(SECOND.record, FIRST.verified.manifests, b"", FIRST.announcement)
        monkeypatch.setattr(stored, "verified", other)
        setup.worker.finish(KEY)
        failed = (await setup.next())[0]
        assert isinstance(failed, StoreFailed)
        assert failed.key == KEY
        assert await setup.done() == []
        assert setup.store.versions() == []


async def test_a_disk_that_refuses_fails_the_version_and_not_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(tmp_path) as setup:
        setup.begin(FIRST)
        await setup.next()
        with monkeypatch.context() as full:
            full.setattr(StoredEncoding, "write_verified", disk_full)
            setup.worker.write(KEY, ChunkIndex(0), FIRST.chunk(0))
            failed = (await setup.next())[0]
        assert isinstance(failed, StoreFailed)
        assert failed.reason.startswith("disk full")
        assert failed.fix
        setup.write(FIRST, KEY)
        setup.worker.finish(KEY)
        assert await setup.next() == [VersionFinished(KEY)]


async def test_an_internal_error_fails_only_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise OSError(errno.EBADF, "a bug")

    async with working(tmp_path) as setup:
        with monkeypatch.context() as bug:
            bug.setattr(ChunkStore, "advance", fail)
            bug.setattr(ChunkStore, "begin", fail)
            setup.begin(FIRST)
            assert await setup.next() == [StoreFailed(KEY, "internal error, see the log")]
        assert await setup.done() == []


async def test_an_abandoned_encoding_gives_its_space_back(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        key = setup.begin(SECOND)
        setup.worker.discard(key)
        setup.worker.write(key, ChunkIndex(0), SECOND.chunk(0))
        events = await setup.next(2)
        assert isinstance(events[1], StoreFailed)
        assert not (tmp_path / "store" / "2").exists()
        assert not setup.worker.memory.full


async def test_removed_encodings_are_reported(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        for version in (3, 4, 5):
            Published(RUN_ID, LEARNER, version).put(setup.store)
        setup.worker.prune(frozenset({key_of(3)}))
        assert await setup.done() == []
        setup.worker.prune()
        assert await setup.next() == [EncodingsRemoved((key_of(3),))]
        setup.worker.prune()
        assert await setup.done() == []


def test_only_versions_signed_by_this_runs_learner_are_kept(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "store", keep_versions=4)
    FIRST.put(store)
    Published(RUN_ID, Identity.generate(), 50).put(store)

    def verify(announcement: pb.VersionAnnouncement) -> VerifiedVersion:
        return verify_announcement(announcement, run_id=RUN_ID, learner_public_key=LEARNER.public_key)

    assert [one.version for one in keep_verified(store, verify)] == [1]
    assert store.versions() == [1]
    store.close()


async def test_closing_discards_waiting_jobs(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        setup.begin(FIRST)
        setup.worker.close()
        assert setup.events.empty()
        assert setup.store.versions() == []


async def test_a_base_that_was_held_before_goes_to_the_mirror_folder_with_its_adapters(tmp_path: Path) -> None:
    adapters = Published(RUN_ID, LEARNER, 5, over=FIRST)
    async with working(tmp_path, mirrored=True) as setup:
        FIRST.put(setup.store)  # received before the folder was configured
        key = setup.begin(adapters)
        setup.write(adapters, key)
        setup.worker.finish(key)
        assert await setup.next(2) == [StoreReady(key, NOTHING), VersionFinished(key)]
        await setup.done()
    assert sorted(path.name for path in (tmp_path / "mirror").iterdir() if path.name.isdigit()) == ["1", "5"]
