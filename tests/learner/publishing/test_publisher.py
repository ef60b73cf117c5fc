from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from learner.config import PublishConfig
from learner.publishing import publisher
from learner.publishing.growth import Progress, Write
from learner.publishing.origin_link import OriginRefused
from learner.publishing.prepared import Prepared
from learner.publishing.publisher import OriginPusher, Publisher
from learner.publishing.versions import Freezing, RetainedVersions
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.errors import CheckpointError, RunFolderError, WaitTimedOut, WrongKey
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import EncodingId, Epoch, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import chunk_size_for
from rollcast.wire.versions.delta import DeltaDecoder, InPlace
from rollcast.wire.versions.records import VerifiedVersion
from rollcast.wire.versions.state_hash import LEAF_BYTES
from rollcast.wire.versions.tensors import TensorSpec, tensor_table
from tests.learner.scripted_run import RUN_ID, ScriptedOrigin, World


def snapshot(version: int, size: int = 40_000) -> Snapshot:
    data = np.random.default_rng(version).bytes(4 * size)
    return Snapshot((TensorSpec("weights", "float32", (size,), 0, 4 * size),), data)


def known_to_run(newest: VerifiedVersion) -> pb.RunInfo:
    """Return the facts of a run of which this is the newest version."""
    return pb.RunInfo(
        run_id=RUN_ID,
        has_published=True,
        newest_published_version=newest.version,
        newest_announcement=newest.announcement,
    )


class Bench:
    """A publisher with its components."""

    def __init__(self, world: World, folder: Path, *, timeout_s: float = 10.0, info: pb.RunInfo | None = None) -> None:
        self.announced: list[int] = []
        self.retained = RetainedVersions(folder, mapped=2)
        self.world = world
        self.pusher = OriginPusher(self._find, self._credentials, timeout_s=timeout_s, random=Random(0))
        self.info = info or pb.RunInfo(run_id=RUN_ID)
        self.publisher = self.make_publisher()

    def make_publisher(self) -> Publisher:
        return Publisher(
            identity=self.world.authority.learner,
            run=self.info,
            model_json="{}",
            config=PublishConfig(chunk_size_bytes=4096),
            retained=self.retained,
            origin=self.pusher,
            announce=self._announce,
            stop_on_mismatch=True,
        )

    async def _find(self) -> pb.RunInfo:
        return pb.RunInfo(
            run_id=RUN_ID,
            origin_address=self.world.coordinator.origin_address,
            origin_peer_id=self.world.origin_peer_id,
        )

    async def _credentials(self) -> TlsCredentials:
        return self.world.learner_credentials

    async def _announce(self, announcement: pb.VersionAnnouncement) -> bool:
        version = pb.VersionRecord.FromString(announcement.record.payload).version
        assert version in self.world.origin.held, "announced before the origin holds it"
        self.announced.append(version)
        return True


async def test_a_version_is_held_by_the_origin_before_it_is_announced(world: World, tmp_path: Path) -> None:
    bench = Bench(world, tmp_path)
    for version in (0, 1, 2):
        await bench.publisher.publish(Version(version), snapshot(version))
    assert bench.announced == world.origin.held == [0, 1, 2]
    assert world.origin.links == 1
    assert world.origin.versions[2].state == snapshot(2).state_bytes
    first, second = world.origin.versions[0].verified, world.origin.versions[1].verified
    assert first.record.parent_hash == b""
    assert second.record.parent_hash == first.record_hash
    await bench.pusher.close()


async def test_a_broken_link_is_reopened_and_resumes(world: World, tmp_path: Path) -> None:
    world.origin.break_after = [5, 7]
    bench = Bench(world, tmp_path)
    await bench.publisher.publish(Version(0), snapshot(0))
    assert world.origin.links == 3
    assert world.origin.chunks_received == world.origin.versions[0].verified.keyframe.chunk_count
    assert bench.announced == [0]
    await bench.pusher.close()


async def test_an_origin_that_restarts_is_found_again(world: World, tmp_path: Path) -> None:
    bench = Bench(world, tmp_path)
    await bench.publisher.publish(Version(0), snapshot(0))
    await world.origin.stop()
    world.coordinator.origin_address = await world.origin.start()
    await bench.publisher.publish(Version(1), snapshot(1))
    assert bench.announced == [0, 1]
    await bench.pusher.close()


async def test_no_other_peer_can_pass_for_the_origin(world: World, tmp_path: Path) -> None:
    impostor = ScriptedOrigin(world.authority, role="peer")
    world.coordinator.origin_address = await impostor.start()
    bench = Bench(world, tmp_path)
    with pytest.raises(WrongKey, match="not the address of origin"):
        await bench.publisher.publish(Version(0), snapshot(0))
    assert not bench.announced
    assert not impostor.versions
    await impostor.stop()


async def test_an_absent_origin_is_an_error_in_time(world: World, tmp_path: Path) -> None:
    await world.origin.stop()
    bench = Bench(world, tmp_path, timeout_s=0.5)
    with pytest.raises(WaitTimedOut, match="the origin to hold version 0") as caught:
        await bench.publisher.publish(Version(0), snapshot(0))
    assert caught.value.cause.startswith("no link to ")
    assert not bench.announced
    assert bench.retained.versions() == [0], "our own copy comes first"


def refusing(bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Have the origin refuse so many pushes, longer than the learner waits for a silent one; return the versions."""
    push_once, refused = bench.pusher._push_once, list[int]()

    async def push(prepared: Prepared) -> None:
        if len(refused) == times:
            await push_once(prepared)
            return
        refused.append(prepared.signed.version)
        await asyncio.sleep(0.05)
        raise OriginRefused("the origin cancelled: disk full")

    monkeypatch.setattr(publisher, "backoff_delays_s", lambda *_, **__: iter([0.0] * (times + 1)))
    monkeypatch.setattr(bench.pusher, "_push_once", push)
    return refused


async def test_an_origin_whose_disk_is_full_is_waited_for(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(world, tmp_path, timeout_s=0.2)
    refused = refusing(bench, monkeypatch, times=8)
    await bench.publisher.publish(Version(0), snapshot(0))
    assert (len(refused), bench.announced) == (8, [0])
    await bench.pusher.close()


async def test_an_origin_that_refuses_for_too_long_is_an_error(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_REFUSED_S_MOST", 0.0)
    bench = Bench(world, tmp_path, timeout_s=0.2)
    refusing(bench, monkeypatch, times=1000)
    with pytest.raises(WaitTimedOut) as caught:
        await bench.publisher.publish(Version(0), snapshot(0))
    assert caught.value.cause == "the origin cancelled: disk full"


async def test_kept_but_unannounced_versions_are_published_after_a_restart(world: World, tmp_path: Path) -> None:
    first = Bench(world, tmp_path)
    await first.publisher.publish(Version(0), snapshot(0))
    first.publisher.prepare(Version(1), snapshot(1))
    await first.pusher.close()

    info = known_to_run(world.origin.versions[0].verified)
    second = Bench(world, tmp_path, info=info)
    await second.publisher.publish_kept(until=1)
    await second.publisher.publish(Version(1), snapshot(1))
    assert second.announced == [1]
    assert world.origin.versions[1].verified.record.parent_hash == world.origin.versions[0].verified.record_hash
    await second.pusher.close()


async def test_other_bytes_for_a_known_version_stop_the_learner(world: World, tmp_path: Path) -> None:
    bench = Bench(world, tmp_path)
    await bench.publisher.publish(Version(0), snapshot(0))
    await bench.pusher.close()
    with pytest.raises(CheckpointError, match="other weights for version 0"):
        bench.publisher.prepare(Version(0), snapshot(7))

    info = known_to_run(world.origin.versions[0].verified)
    (tmp_path / "empty").mkdir()
    elsewhere = Bench(world, tmp_path / "empty", info=info)
    with pytest.raises(CheckpointError, match="other weights for version 0"):
        elsewhere.publisher.prepare(Version(0), snapshot(7))


class Shelf:
    """An origin in memory, and a publisher that pushes to it."""

    def __init__(
        self, folder: Path, info: pb.RunInfo | None = None, *, adapters: bool = False, **settings: Any
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.pushed: list[Prepared] = []
        self.retained = RetainedVersions(folder, mapped=2)
        self.publisher = Publisher(
            identity=IDENTITY,
            run=info or pb.RunInfo(run_id=RUN_ID),
            model_json="{}",
            config=PublishConfig.model_validate(settings),
            retained=self.retained,
            origin=self,
            announce=self._announce,
            adapters=adapters,
        )

    async def push(self, prepared: Prepared) -> None:
        self.pushed.append(prepared)

    async def _announce(self, announcement: pb.VersionAnnouncement) -> bool:
        assert announcement == self.pushed[-1].signed.announcement
        return True


IDENTITY = Identity.generate()


def trained(version: int) -> Snapshot:
    """Return a version that changes a hundred weights of the previous one."""
    weights = np.random.default_rng(0).standard_normal(20_000, np.float32)
    for step in range(1, version + 1):
        weights[np.random.default_rng(step).integers(0, len(weights), 100)] += 1e-3
    return Snapshot((TensorSpec("weights", "float32", (len(weights),), 0, weights.nbytes),), weights.tobytes())


def bases(prepared: Prepared) -> dict[int, int | None]:
    return {manifest.encoding_id: manifest.base_version for manifest in prepared.signed.manifests}


async def test_deltas_lead_on_from_the_version_before_and_from_earlier(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, squash_versions=3)
    for version in (0, 2, 4, 6, 8):
        await shelf.publisher.publish(Version(version), trained(version))
    assert [bases(one) for one in shelf.pushed] == [
        {0: None},
        {0: None, 1: 0},
        {0: None, 1: 2},
        {0: None, 1: 4, 2: 0},
        {0: None, 1: 6, 2: 2},
    ]
    last = shelf.pushed[-1]
    state = bytearray(trained(6).state_bytes)
    decoder = DeltaDecoder(trained(8).tensors, InPlace(state))
    manifest = last.signed.manifest(1)
    assert manifest is not None
    for index in range(manifest.chunk_count):
        decoder.feed(last.chunk(last.signed.version, EncodingId(1), index))
    decoder.finish()
    assert bytes(state) == trained(8).state_bytes
    for encoding_id, encoded in last.encodings.items():
        signed = last.signed.manifest(encoding_id)
        assert signed is not None
        signed.check_chunk_list(encoded.chunk_hashes)


@pytest.mark.parametrize("settings", [{"deltas": False}, {"squash_versions": 0}])
async def test_deltas_can_be_left_out(tmp_path: Path, settings: dict[str, Any]) -> None:
    shelf = Shelf(tmp_path, **settings)
    for version in range(3):
        await shelf.publisher.publish(Version(version), trained(version))
    assert bases(shelf.pushed[-1]) == ({0: None} if "deltas" in settings else {0: None, 1: 1})


async def test_a_large_keyframe_is_cut_into_leaves_while_versions_go_out_as_deltas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keyframe_chunks(folder: str, **settings: Any) -> list[int]:
        shelf = Shelf(tmp_path / folder, **settings)
        for version, snapshot_of in enumerate((trained, trained, trained, snapshot, trained)):
            await shelf.publisher.publish(Version(version), snapshot_of(version))
        return [one.signed.keyframe.chunk_size_bytes for one in shelf.pushed]

    small = chunk_size_for(len(trained(0).state_bytes))
    assert await keyframe_chunks("small") == [small] * 5
    monkeypatch.setattr(publisher, "_KEYFRAME_IN_LEAVES_BYTES", 1)
    leaves = [small, small, LEAF_BYTES, LEAF_BYTES, small]
    assert await keyframe_chunks("large") == leaves, "the one before the last has no delta"
    assert await keyframe_chunks("chosen", chunk_size_bytes=4096) == [4096] * 5
    assert await keyframe_chunks("whole", deltas=False) == [small] * 5


async def test_a_restart_pushes_the_manifests_that_were_kept(tmp_path: Path) -> None:
    first = Shelf(tmp_path)
    await first.publisher.publish(Version(0), trained(0))
    prepared = first.publisher.prepare(Version(1), trained(1))
    info = known_to_run(first.pushed[0].signed)
    for again in (Shelf(tmp_path, info, deltas=False), Shelf(tmp_path, info, chunk_size_bytes=2048)):
        assert again.publisher.prepare(Version(1), trained(1)) == prepared
        await again.publisher.publish_kept(until=1)
        assert again.pushed == [prepared]
        known = again.publisher.prepare(Version(0), trained(0))
        assert known is not None
        assert known.encodings == {}, "the run has it"


async def test_a_damaged_delta_is_an_error(tmp_path: Path) -> None:
    first = Shelf(tmp_path)
    await first.publisher.publish(Version(0), trained(0))
    first.publisher.prepare(Version(1), trained(1))
    (tmp_path / "000000000001.delta1").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="delta of version 1"):
        await Shelf(tmp_path).publisher.publish_kept(until=1)


# ---------------------------------------------------------------- adapters


def adapters_of(version: int) -> Snapshot:
    """Return adapters over version 0: other tensors than its own, of which a few change with each version."""
    whole = trained(version)
    size = len(whole.state_bytes) // 2
    return Snapshot((TensorSpec("adapters", "float32", (size // 4,), 0, size),), bytes(whole.state_bytes)[:size])


def published(version: int) -> Snapshot:
    return adapters_of(version) if version else trained(0)


async def test_adapters_name_version_0_and_start_no_delta_from_it(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, adapters=True, squash_versions=2)
    for version in range(4):
        await shelf.publisher.publish(Version(version), published(version))
    assert [bases(one) for one in shelf.pushed] == [{0: None}, {0: None}, {0: None, 1: 1}, {0: None, 1: 2, 2: 1}]
    whole, *adapters = shelf.pushed
    assert whole.base is whole.signed.base is None
    for one in adapters:
        assert one.signed.base == whole.signed
        assert one.base is not None
        assert one.base.chunk(Version(0), EncodingId(0), 0) == whole.chunk(Version(0), EncodingId(0), 0)


async def test_version_0_stays_as_long_as_adapters_over_it(tmp_path: Path) -> None:
    first = Shelf(tmp_path, adapters=True)
    for version in range(3):
        await first.publisher.publish(Version(version), published(version))
    first.retained.remove([Version(0), Version(1)], oldest_replayed=2)
    assert first.retained.versions() == [0, 2]
    again = Shelf(tmp_path, known_to_run(first.pushed[-1].signed), adapters=True)
    await again.publisher.publish(Version(3), published(3))
    assert again.pushed[-1].signed.base == first.pushed[0].signed


async def test_a_learner_with_a_new_disk_takes_version_0_over_from_the_run(tmp_path: Path) -> None:
    first = Shelf(tmp_path / "first", adapters=True)
    for version in range(3):
        await first.publisher.publish(Version(version), published(version))
    again = Shelf(tmp_path / "again", known_to_run(first.pushed[-1].signed), adapters=True)
    await again.publisher.publish(Version(0), published(0))
    assert not again.pushed
    assert again.publisher.common_version == 0
    again.publisher.enter_epoch(Epoch(1), Version(3), common=Version(0))
    await again.publisher.publish(Version(3), published(3))
    assert again.pushed[-1].signed.base == first.pushed[0].signed, "signed once"


# ---------------------------------------------------------------- training again


async def resumed(folder: Path, *versions: int) -> Shelf:
    """Return the publisher of a second life; the first life published these versions."""
    first = Shelf(folder)
    for version in versions:
        await first.publisher.publish(Version(version), trained(version))
    return Shelf(folder, known_to_run(first.pushed[-1].signed))


async def test_a_version_whose_bytes_were_removed_is_restored_and_never_signed_again(tmp_path: Path) -> None:
    shelf = await resumed(tmp_path, 0, 1, 2, 3)
    before = shelf.retained.signed(Version(1))
    shelf.retained.remove([Version(0), Version(1)], oldest_replayed=0)
    await shelf.publisher.publish(Version(1), trained(1))
    assert shelf.retained.signed(Version(1)) == before
    assert shelf.retained.state(Version(1))[1] == trained(1).state_bytes
    assert not shelf.pushed
    assert (shelf.publisher.diverged, shelf.publisher.common_version) == (False, 1)
    assert [shelf.publisher.knows(Version(version)) for version in (0, 3, 4)] == [True, True, False]
    assert shelf.publisher.newest_known == 3


async def test_another_state_is_neither_signed_nor_taken_for_the_published_one(tmp_path: Path) -> None:
    shelf = await resumed(tmp_path, 0, 1, 2, 3)
    shelf.retained.remove([Version(2)], oldest_replayed=0)
    await shelf.publisher.publish(Version(1), trained(1))
    await shelf.publisher.publish(Version(2), trained(7))
    assert (shelf.publisher.diverged, shelf.publisher.common_version) == (True, 1)
    await shelf.publisher.publish(Version(3), trained(8))
    await shelf.publisher.publish(Version(4), trained(9))
    assert not shelf.pushed
    assert shelf.retained.used(Version(2))[1] == trained(7).state_bytes, "the published bytes were removed"
    assert shelf.retained.used(Version(3))[1] == trained(3).state_bytes, "the published bytes are kept"
    assert shelf.retained.versions() == [0, 1, 3]


async def test_an_epoch_begins_with_a_keyframe_on_top_of_the_newest_version(tmp_path: Path) -> None:
    shelf = await resumed(tmp_path, 0, 1, 2)
    await shelf.publisher.publish(Version(1), trained(7))
    assert shelf.publisher.diverged
    shelf.publisher.enter_epoch(Epoch(1), Version(3))
    assert (shelf.publisher.diverged, shelf.publisher.common_version) == (False, None)
    for version in (3, 4):
        await shelf.publisher.publish(Version(version), trained(version + 4))
    first, second = (one.signed for one in shelf.pushed)
    assert [bases(one) for one in shelf.pushed] == [{0: None}, {0: None, 1: 3}]
    assert (first.record.epoch, second.record.epoch) == (1, 1)
    newest_before = shelf.retained.signed(Version(2))
    assert newest_before is not None
    assert first.record.parent_hash == newest_before.record_hash


def freezing(
    bench: Bench, version: int, fail_at: int = -1, data: bytes | None = None, wait: Callable[[], object] = lambda: True
) -> Freezing:
    """Return a snapshot whose tensors are written one after the other; the write of one may fail.

    Args:
        wait: the second tensor is written once this returns True, after ten seconds at the latest.
    """
    if data is None:
        data = bytes(snapshot(0).state_bytes)
        data = changed(data) if version else data
    quarter = len(data) // 4
    tensors = tensor_table((str(part), "float32", (quarter // 4,)) for part in range(4))

    def begin(path: Path, _: Version) -> Write:
        def run(progress: Progress) -> None:
            with path.open("r+b", buffering=0) as file:
                for part in range(4):
                    time.sleep(0.02)
                    end_s = time.monotonic() + 10.0
                    while part and not wait() and time.monotonic() < end_s:
                        time.sleep(0.002)
                    if part == fail_at:
                        raise OSError(errno.ENOSPC, "No space left on device")
                    file.write(data[part * quarter : (part + 1) * quarter])
                    progress((part + 1) * quarter)

        return Write(tensors, run)

    return bench.retained.freeze(Version(version), begin)


def named(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


def changed(state: bytes) -> bytes:
    items = np.frombuffer(state, np.uint32).copy()
    items[::100] += 1
    return items.tobytes()


@pytest.mark.parametrize("in_memory", [False, True])
async def test_a_version_is_encoded_while_it_is_written(world: World, tmp_path: Path, in_memory: bool) -> None:
    bench = Bench(world, tmp_path)
    bench.retained = RetainedVersions(tmp_path, mapped=2, in_memory=in_memory)
    bench.publisher = bench.make_publisher()
    states = [snapshot(0).state_bytes, changed(bytes(snapshot(0).state_bytes))]
    for version in (0, 1):
        await bench.publisher.publish(Version(version), freezing(bench, version))
        assert world.origin.versions[version].state == states[version]
        assert bench.retained.state(Version(version))[1] == states[version]
        assert bench.publisher.stages_s.keys() >= {"freeze", "encode", "keep", "push"}
    assert len(named(tmp_path, "*.state")) == (1 if in_memory else 2)
    assert bench.announced == [0, 1]
    await bench.pusher.close()


async def test_a_keyframe_is_sent_while_it_is_written_and_a_delta_is_not(world: World, tmp_path: Path) -> None:
    bench = Bench(world, tmp_path)
    await bench.publisher.publish(Version(0), freezing(bench, 0, wait=lambda: world.origin.came_ahead))
    assert world.origin.came_ahead == {0}
    await bench.publisher.publish(Version(1), freezing(bench, 1))
    assert world.origin.held == bench.announced == [0, 1]
    await bench.publisher.publish(Version(1), freezing(bench, 1))
    await bench.publisher.publish(Version(2), snapshot(2))  # no delta is short enough, which is not known before
    assert world.origin.came_ahead == {0}
    await bench.pusher.close()


async def test_a_link_that_breaks_ahead_of_the_signature_costs_only_that(world: World, tmp_path: Path) -> None:
    world.origin.break_after = [1]
    bench = Bench(world, tmp_path)
    await bench.publisher.publish(Version(0), freezing(bench, 0, wait=lambda: world.origin.came_ahead))
    assert world.origin.links == 2
    assert world.origin.versions[0].state == snapshot(0).state_bytes
    assert bench.announced == [0]
    await bench.pusher.close()


async def test_other_bytes_that_were_sent_ahead_are_sent_again(world: World, tmp_path: Path) -> None:
    world.origin.ahead[0] = dict.fromkeys(range(3), b"of an earlier life")
    bench = Bench(world, tmp_path)
    await bench.publisher.publish(Version(0), snapshot(0))
    assert world.origin.versions[0].state == snapshot(0).state_bytes
    await bench.pusher.close()


async def test_a_publication_is_cancelled_while_it_is_sent_ahead(world: World, tmp_path: Path) -> None:
    bench = Bench(world, tmp_path)
    written = threading.Event()
    frozen = freezing(bench, 0, wait=written.is_set)
    publishing = asyncio.create_task(bench.publisher.publish(Version(0), frozen))
    async with asyncio.timeout(10.0):
        while not world.origin.came_ahead:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    publishing.cancel()
    written.set()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert not world.origin.held
    await bench.pusher.close()


async def test_with_one_state_in_memory_a_step_spends_the_state_before(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.publishing.publisher._AHEAD_BYTES", 10_000)
    bench = Bench(world, tmp_path)
    bench.retained = RetainedVersions(tmp_path, mapped=2, in_memory=True, newest_only=True)
    bench.publisher = bench.make_publisher()
    spent: list[bool] = []
    spend = bench.retained.spend
    monkeypatch.setattr(bench.retained, "spend", lambda base: spent.append((found := spend(base)) is not None) or found)
    states = [bytes(snapshot(0).state_bytes)]
    for version in range(4):
        if version == 3:
            states.append(bytes(snapshot(3).state_bytes))  # no delta is short enough
        elif version:
            states.append(changed(states[-1]))
        await bench.publisher.publish(Version(version), freezing(bench, version, data=states[-1]))
        assert world.origin.versions[version].state == states[version]
    assert spent == [False, True, True], "version 0 is on disk"
    assert [bench.retained.state(Version(version))[1] for version in range(4)] == states
    await bench.pusher.close()


async def test_a_version_that_cannot_be_written_is_not_published(world: World, tmp_path: Path) -> None:
    bench = Bench(world, tmp_path)
    with pytest.raises(RunFolderError, match="No space left"):
        await bench.publisher.publish(Version(0), freezing(bench, 0, fail_at=2))
    assert (bench.announced, bench.retained.versions(), named(tmp_path, ".*.tmp")) == ([], [], [])
    await bench.pusher.close()
