"""Test the worker's shell with an engine without a model and an uploader in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from peer.engines.base import VersionState
from peer.worker.core.core import WorkerCore
from peer.worker.core.events import LeasesGranted, SessionOpened, StopRequested, Verdict, VersionVerified
from peer.worker.core.status import WorkerStatus
from peer.worker.worker import Worker
from rollcast.runtime.errors import CorruptChunk, ProcessFailed, RollcastError, StoreError, Unreachable
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import partial_from_pb
from rollcast.wire.rollouts import Rollout
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.peer.engines.fake_engine import FakeEngine
from tests.peer.versions import stored_version
from tests.peer.worker.core.worker_samples import grant, key, segment
from tests.wire.versions.build import a_state, a_step, changed, put, put_delta


class Uploads:
    """Accepts everything after ``failures`` calls that fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.accepted: list[Rollout] = []

    async def upload(self, rollouts: tuple[Rollout, ...]) -> tuple[Verdict, ...]:
        if self.failures:
            self.failures -= 1
            raise Unreachable("the coordinator cannot be reached")
        self.accepted += rollouts
        return tuple(Verdict(item.lease_id, item.sample_index, True, "") for item in rollouts)


class NoDelay(Random):
    def uniform(self, a: float, b: float) -> float:
        return 0.0


class Fixture:
    def __init__(self, folder: Path, engine: FakeEngine, uploads: Uploads, **settings: Any) -> None:
        self.store = ChunkStore(folder, keep_versions=4, in_memory=True)
        self.engine = engine
        self.uploads = uploads
        self.sent: list[pb.PeerMessage] = []
        self.damaged: list[Version] = []
        self.worker = Worker(
            WorkerCore(concurrent_rollouts=4, **settings),
            engine=engine,
            store=self.store,
            uploads=uploads,
            send=self.sent.append,
            peer_id=PeerId("12D3KooWpeer"),
            random=NoDelay(),
            damaged=self.damaged.append,
        )
        self.running = asyncio.create_task(self.worker.run())

    def status(self) -> WorkerStatus:
        return self.worker.status(None)

    def kinds(self) -> list[str | None]:
        return [message.WhichOneof("body") for message in self.sent]

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        async with deadline(5.0, what):
            while not condition() and not self.running.done():  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.002)

    def start_version(self, version: int) -> None:
        stored_version(self.store, version)
        self.worker.handle(VersionVerified(key(version)))


@asynccontextmanager
async def a_worker(
    folder: Path, engine: FakeEngine | None = None, uploads: Uploads | None = None, **settings: Any
) -> AsyncIterator[Fixture]:
    fixture = Fixture(folder, engine or FakeEngine(), uploads or Uploads(), **settings)
    fixture.worker.handle(SessionOpened())
    try:
        yield fixture
    finally:
        fixture.running.cancel()
        with suppress(asyncio.CancelledError, RollcastError):
            await fixture.running
        fixture.store.close()


async def test_from_a_version_on_disk_to_an_accepted_rollout(tmp_path: Path) -> None:
    async with a_worker(tmp_path) as fixture:
        fixture.start_version(3)
        await fixture.until(lambda: "work_request" in fixture.kinds(), "the worker to be ready")
        lease = grant(1, 4)
        fixture.worker.handle(LeasesGranted((lease,)))
        await fixture.until(lambda: len(fixture.uploads.accepted) == 4, "four uploads")
        first = fixture.uploads.accepted[0]
        assert (first.lease_id, first.sample_index, first.group_id) == (1, 0, lease.group_id)
        (segment,) = first.segments
        assert (segment.version, segment.role, segment.peer_id) == (3, "assistant", "12D3KooWpeer")
        assert segment.loss_mask == b"\1" * len(segment.token_ids)
        assert fixture.kinds()[:2] == ["version_held", "work_request"]


async def test_a_lease_shorter_than_a_batch_is_generated_without_another_event(tmp_path: Path) -> None:
    async with a_worker(tmp_path) as fixture:
        fixture.start_version(0)
        await fixture.until(lambda: "work_request" in fixture.kinds(), "the worker to be ready")
        fixture.worker.handle(LeasesGranted((grant(1, 1),)))
        await fixture.until(lambda: len(fixture.uploads.accepted) == 1, "an upload")


async def test_a_version_that_comes_while_generating_is_used_by_the_next_batch(tmp_path: Path) -> None:
    async with a_worker(tmp_path) as fixture:
        fixture.start_version(0)
        await fixture.until(lambda: "work_request" in fixture.kinds(), "the worker to be ready")
        fixture.engine.released.clear()
        fixture.worker.handle(LeasesGranted((grant(1, 4), grant(2, 4))))
        await fixture.until(lambda: fixture.engine.batches, "the first batch")
        fixture.start_version(1)
        await fixture.until(lambda: fixture.engine.loads == [0, 1], "the second load")
        assert fixture.engine.active_version == 0
        fixture.engine.released.set()
        await fixture.until(lambda: len(fixture.uploads.accepted) == 8, "eight uploads")
        assert [item.oldest_version for item in fixture.uploads.accepted] == [0] * 4 + [1] * 4


async def test_a_version_that_is_replaced_before_it_is_loaded_is_skipped(tmp_path: Path) -> None:
    async with a_worker(tmp_path) as fixture:
        fixture.start_version(3)
        await fixture.until(lambda: fixture.status().active == key(3), "version 3")
        stored_version(fixture.store, 5)
        fixture.worker.handle(VersionVerified(key(4)))
        fixture.worker.handle(VersionVerified(key(5)))
        await fixture.until(lambda: fixture.status().active == key(5), "version 5")


async def test_a_version_whose_memory_is_being_changed_is_not_loaded(tmp_path: Path) -> None:
    """A delta that is applied takes the memory of its base long before the new state is in the store."""
    async with a_worker(tmp_path) as fixture:
        put(fixture.store, 1)
        step = a_step(a_state(seed=1), changed(a_state(seed=1), 0), 2)
        fixture.store.materialise(put_delta(fixture.store, step)).finish()
        base = fixture.store.get(Version(2))
        assert base is not None
        assert base.take_memory() is not None
        fixture.worker.handle(VersionVerified(key(2)))
        await asyncio.sleep(0)  # the task that loads it runs
        stored_version(fixture.store, 3)
        fixture.worker.handle(VersionVerified(key(3)))
        await fixture.until(lambda: fixture.status().active == key(3), "version 3")
        assert fixture.engine.loads == [3]


async def test_a_version_that_is_held_and_cannot_be_read_ends_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_encoding: StoredEncoding) -> memoryview:
        raise StoreError("the disk cannot be read")

    monkeypatch.setattr(StoredEncoding, "state_bytes", fails)
    async with a_worker(tmp_path) as fixture:
        fixture.start_version(3)
        with pytest.raises(StoreError, match="the disk cannot be read"):
            await fixture.running


async def test_failed_uploads_are_retried(tmp_path: Path) -> None:
    async with a_worker(tmp_path, uploads=Uploads(failures=3)) as fixture:
        fixture.start_version(0)
        fixture.worker.handle(LeasesGranted((grant(1, 4),)))
        await fixture.until(lambda: len(fixture.uploads.accepted) == 4, "four uploads")


async def test_draining_ends_the_worker(tmp_path: Path) -> None:
    async with a_worker(tmp_path) as fixture:
        fixture.start_version(0)
        await fixture.until(lambda: "work_request" in fixture.kinds(), "the worker to be ready")
        fixture.engine.released.clear()
        fixture.worker.handle(LeasesGranted((grant(1, 8),)))
        fixture.worker.handle(StopRequested("stopped by a signal"))
        assert await asyncio.wait_for(fixture.running, 2.0) == "stopped by a signal"
        assert fixture.engine.closed
        assert fixture.sent[-1].lease_return.lease_ids == [1]


async def test_a_stopped_worker_uploads_the_tokens_of_its_slices(tmp_path: Path) -> None:
    async with a_worker(tmp_path, FakeEngine(token_s=0.001), slice_tokens=1) as fixture:
        fixture.start_version(0)
        endless = grant(1, 4, max_new_tokens=100_000, stop_token_ids=())
        fixture.worker.handle(LeasesGranted((endless,)))
        await fixture.until(lambda: fixture.status().tokens_generated > 20, "some tokens")
        fixture.worker.handle(StopRequested("stopped by a signal"))
        await asyncio.wait_for(fixture.running, 2.0)
        assert {item.finish_reason for item in fixture.uploads.accepted} == {"interrupted"}
        tokens = sum(len(item.completion_token_ids) for item in fixture.uploads.accepted)
        assert tokens == fixture.status().tokens_generated


async def test_running_rollouts_are_reported_and_continue_with_a_new_version(tmp_path: Path) -> None:
    async with a_worker(tmp_path, FakeEngine(token_s=0.001), slice_tokens=1) as fixture:
        fixture.worker.handle(SessionOpened(partial_interval_s=0.01, at_version_swap="continue"))
        fixture.start_version(0)
        lease = grant(1, 1, max_new_tokens=200, stop_token_ids=())
        fixture.worker.handle(LeasesGranted((lease,)))
        await fixture.until(lambda: "partial_rollout" in fixture.kinds(), "a partial result")
        fixture.start_version(1)
        await fixture.until(lambda: fixture.uploads.accepted, "the rollout")
        (whole,) = fixture.uploads.accepted
        assert [part.version for part in whole.segments] == [0, 1]
        partials = [partial_from_pb(item.partial_rollout) for item in fixture.sent if item.HasField("partial_rollout")]
        told = [token for partial in partials for part in partial.segments for token in part.token_ids]
        assert tuple(told) == whole.completion_token_ids[: len(told)]


async def test_an_attempt_continues_where_another_was_lost(tmp_path: Path) -> None:
    async with a_worker(tmp_path) as fixture:
        fixture.start_version(0)
        whole = grant(1, 1, max_new_tokens=30, stop_token_ids=())
        fixture.worker.handle(LeasesGranted((whole,)))
        await fixture.until(lambda: fixture.uploads.accepted, "the whole")
        tokens = fixture.uploads.accepted[0].completion_token_ids
        prefix = segment(tokens[:12], peer=PeerId("12D3KooWlost"))
        slot = replace(whole.slots[0], prefix=(prefix,))
        fixture.worker.handle(LeasesGranted((replace(whole, lease_id=LeaseId(2), slots=(slot,)),)))
        await fixture.until(lambda: len(fixture.uploads.accepted) == 2, "the continued one")
        continued = fixture.uploads.accepted[1]
        assert continued.segments[0] == prefix
        assert continued.completion_token_ids == tokens


async def test_weights_that_change_on_their_way_into_the_engine_end_the_peer(tmp_path: Path) -> None:
    class Forgetful(FakeEngine):
        async def load(self, version: VersionState) -> bytes:
            return await super().load(replace(version, state=memoryview(bytes(version.state)[:-1] + b"?")))

    async with a_worker(tmp_path, Forgetful()) as fixture:
        fixture.start_version(0)
        with pytest.raises(CorruptChunk, match="version 0 as loaded"):
            await asyncio.wait_for(fixture.running, 2.0)


async def test_a_state_that_changed_on_disk_is_received_again(tmp_path: Path) -> None:
    async with a_worker(tmp_path) as fixture:
        stored_version(fixture.store, 0)
        with (fixture.store.folder / "0" / "0.data").open("r+b") as file:
            file.write(b"?")
        fixture.worker.handle(VersionVerified(key(0)))
        await fixture.until(lambda: fixture.damaged, "the damage to be noticed")
        assert fixture.damaged == [0]
        fixture.store.discard(Version(0))
        fixture.start_version(0)
        await fixture.until(lambda: fixture.engine.active_version == 0, "the version to be active")
        assert not fixture.running.done()


async def test_an_engine_gets_the_file_of_the_states_bytes(tmp_path: Path) -> None:
    class Maps(FakeEngine):
        async def load(self, version: VersionState) -> bytes:
            assert version.path is not None
            return await super().load(replace(version, state=memoryview(version.path.read_bytes())))

    async with a_worker(tmp_path, Maps()) as fixture:
        fixture.start_version(0)
        await fixture.until(lambda: fixture.engine.active_version == 0, "the version to be active")


async def test_an_engine_gets_the_base_of_adapters_too(tmp_path: Path) -> None:
    loaded: list[VersionState] = []

    class Notes(FakeEngine):
        async def load(self, version: VersionState) -> bytes:
            base = version.base
            assert base is not None
            assert base.path is not None
            assert base.path.read_bytes() == bytes(base.state)
            loaded.append(version)
            return await super().load(version)

    async with a_worker(tmp_path, Notes()) as fixture:
        base = put(fixture.store, 0).verified
        put(fixture.store, 3, base=base)
        fixture.worker.handle(VersionVerified(key(3)))
        await fixture.until(lambda: fixture.engine.active_version == 3, "the version to be active")
    assert [(one.record.version, one.base and one.base.record.version) for one in loaded] == [(3, 0)]


async def test_an_engine_that_fails_ends_the_peer_with_one_clear_error(tmp_path: Path) -> None:
    class Broken(FakeEngine):
        def begin(self, requests: Any) -> Any:
            raise RuntimeError("out of memory")

    async with a_worker(tmp_path, Broken()) as fixture:
        fixture.start_version(0)
        fixture.worker.handle(LeasesGranted((grant(1, 4),)))
        with pytest.raises(ProcessFailed, match="failed while generating rollouts") as caught:
            await asyncio.wait_for(fixture.running, 2.0)
        assert "out of memory" in caught.value.cause
