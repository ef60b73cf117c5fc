from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.publishing.growth import Progress, Write
from learner.publishing.memory_files import MemoryMap
from learner.publishing.versions import FrozenSnapshot, RetainedVersions, no_longer_needed
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.errors import CheckpointError, RunFolderError
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.records import (
    PREVIOUS_ID,
    VerifiedVersion,
    VersionRecord,
    delta_manifest,
    keyframe_manifest,
    parse_announcement,
    sign_version,
)
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import TensorSpec
from tests.learner.publishing.chain import STATE_BYTES, Chain
from tests.wire.versions.crashing_disk import Crash, crash_after

IDENTITY = Identity.generate()


def snapshot(version: int) -> Snapshot:
    return Snapshot(signed(version).record.tensors, state(version))


def state(version: int) -> bytes:
    return bytes([version % 256]) * 5000


def delta(version: int) -> bytes:
    return bytes([version % 256]) * 1500


def signed(version: int) -> VerifiedVersion:
    data = state(version)
    tensors = (TensorSpec("weights", "uint8", (len(data),), 0, len(data)),)
    record = VersionRecord(RunId("run"), Epoch(0), Version(version), b"", state_hash(data), len(data), tensors, "{}")
    manifests = [keyframe_manifest(record, chunk_list(data, 1024), 1024)]
    if version:
        hashes = chunk_list(delta(version), 1024)
        base = Version(version - 1)
        manifests.append(
            delta_manifest(record, PREVIOUS_ID, base, size_bytes=1500, chunk_hashes=hashes, chunk_size_bytes=1024)
        )
    return parse_announcement(sign_version(record, manifests, IDENTITY))


def filled(folder: Path, *versions: int) -> RetainedVersions:
    retained = RetainedVersions(folder, mapped=2)
    for version in versions:
        retained.retain(signed(version), snapshot(version), {PREVIOUS_ID: delta(version)} if version else {})
    return retained


def test_versions_come_back_from_memory_and_from_disk(tmp_path: Path) -> None:
    filled(tmp_path, 0, 2, 4, 6)
    retained = RetainedVersions(tmp_path, mapped=2)
    assert retained.versions() == [0, 2, 4, 6]
    for version in (0, 2, 4, 6, 0):
        record, data = retained.state(Version(version))
        assert (record.version, data) == (version, state(version))
    assert retained.signed(Version(4)) == signed(4)
    assert retained.signed(Version(5)) is None


def test_a_missing_version_is_named(tmp_path: Path) -> None:
    retained = filled(tmp_path, 3, 4)
    with pytest.raises(CheckpointError, match="no copy of version 2") as caught:
        retained.state(Version(2))
    assert "2 versions from 3 to 4" in caught.value.cause


def test_damage_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    path = tmp_path / "000000000003.state"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(CheckpointError, match="damaged"):
        RetainedVersions(tmp_path, mapped=2).state(Version(3))
    (tmp_path / "000000000003.version").write_bytes(b"\xff\xff")
    with pytest.raises(CheckpointError, match="record of version 3"):
        RetainedVersions(tmp_path, mapped=2).state(Version(3))


def test_bases_take_no_place_of_another(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2, 3)
    retained = RetainedVersions(tmp_path, mapped=1)
    kept = retained.state(Version(3))
    for version in (1, 2, 3):
        record, data = retained.base(Version(version))
        assert (record.version, bytes(data)) == (version, state(version))
    assert retained.state(Version(3))[1] is kept[1]
    (tmp_path / "000000000001.state").write_bytes(b"x" * 5000)
    (tmp_path / "000000000002.state").unlink()
    for version, problem in ((1, "damaged"), (2, "made of another version and deltas, is damaged"), (9, "no copy")):
        with pytest.raises(CheckpointError, match=problem):
            retained.base(Version(version))


def test_deltas_come_back_as_they_were(tmp_path: Path) -> None:
    retained = filled(tmp_path, 3)
    (manifest,) = signed(3).deltas
    assert retained.delta(Version(3), manifest) == delta(3)
    (tmp_path / "000000000003.delta1").write_bytes(delta(4))
    with pytest.raises(CheckpointError, match="delta of version 3"):
        retained.delta(Version(3), manifest)


def test_removing_leaves_other_versions(tmp_path: Path) -> None:
    retained = filled(tmp_path, 0, 1, 2, 3)
    retained.remove([Version(0), Version(2)], oldest_replayed=1)
    assert retained.versions() == [1, 3]
    suffixes = sorted(path.suffix for path in tmp_path.iterdir())
    assert suffixes == [".delta1", ".delta1", ".record", ".state", ".state", ".version", ".version"]
    with pytest.raises(CheckpointError):
        retained.state(Version(2))


def test_signed_records_are_kept_as_long_as_a_replay_needs_them(tmp_path: Path) -> None:
    retained = filled(tmp_path, 0, 1, 2, 3)
    retained.remove([Version(0), Version(1)], oldest_replayed=0)
    again = RetainedVersions(tmp_path, mapped=2)
    assert [again.signed(Version(version)) for version in (0, 1)] == [None, None]
    assert [again.record(Version(version)) for version in (0, 1, 3)] == [signed(0), signed(1), signed(3)]
    again.retain(signed(1), snapshot(1), {})
    assert again.versions() == [1, 2, 3]
    again.remove([Version(1)], oldest_replayed=2)
    assert again.record(Version(1)) is None


def test_stand_ins_serve_only_where_the_published_bytes_are_gone(tmp_path: Path) -> None:
    retained = filled(tmp_path, 0, 1, 2)
    tensors = signed(1).record.tensors
    other = Snapshot(tensors, b"other")
    retained.remove([Version(1)], oldest_replayed=0)
    for version in (1, 2):
        retained.stand_in(Version(version), other)
    assert retained.used(Version(1)) == (tensors, b"other")
    assert retained.used(Version(2)) == (tensors, state(2))
    for version in (3, 4):
        retained.stand_in(Version(version), other)
    with pytest.raises(CheckpointError, match="no copy of version 1"):
        retained.used(Version(1))


def test_a_frozen_snapshot_becomes_a_version_where_it_lies(tmp_path: Path) -> None:
    retained = RetainedVersions(tmp_path, mapped=2)
    data = state(1)

    def begin(path: Path, version: Version) -> Write:
        assert (path.read_bytes(), version) == (b"", 1)

        def write(_: Progress) -> None:
            with path.open("r+b") as file:
                file.write(data)

        return Write(signed(1).record.tensors, write)

    frozen = retained.freeze(Version(1), begin).finish()
    assert frozen.path is not None
    inode = frozen.path.stat().st_ino
    assert (retained.versions(), frozen.state_bytes) == ([], data)
    retained.retain(signed(1), frozen, {})
    retained.discard(frozen)
    assert (tmp_path / "000000000001.state").stat().st_ino == inode
    assert retained.state(Version(1))[1] == data
    unused = retained.freeze(Version(1), begin).finish()
    retained.discard(unused)
    assert unused.state_bytes == data, "a stand-in reads it on"
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_leaves_no_half_of_a_snapshot(tmp_path: Path) -> None:
    retained = RetainedVersions(tmp_path, mapped=2)

    def fail(_: Progress) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    freezing = retained.freeze(Version(1), lambda *_: Write(signed(1).record.tensors, fail))
    with pytest.raises(RunFolderError, match="full"):
        freezing.finish()
    assert not list(tmp_path.iterdir())


def test_a_half_written_version_does_not_exist(tmp_path: Path) -> None:
    retained = filled(tmp_path, 1)
    (tmp_path / "000000000002.state").write_bytes(b"half")
    (tmp_path / "000000000002.delta1").write_bytes(b"half")
    (tmp_path / ".000000000003.state.1.tmp").write_bytes(b"half")
    assert retained.versions() == [1]
    retained.remove_unfinished()
    assert sorted(path.suffix for path in tmp_path.glob("000000000001.*")) == [".delta1", ".state", ".version"]
    assert len(list(tmp_path.iterdir())) == 3


@settings(deadline=None, max_examples=100)
@given(
    step=st.integers(0, 60),
    kappa=st.integers(1, 5),
    limit=st.integers(0, 6),
    every=st.integers(1, 20),
    newest=st.integers(0, 3),
    repeated=st.sampled_from([0, 40]),
    measured=st.frozensets(st.integers(0, 60).map(Version), max_size=2),
)
def test_kept_versions_serve_coming_batches_evaluations_and_any_resume(
    step: int, kappa: int, limit: int, every: int, newest: int, repeated: int, measured: frozenset[Version]
) -> None:
    versions = [Version(version) for version in range(0, step + repeated + 1, kappa)]  # an earlier life's too
    checkpoints = list(range(0, step + 1, every))[-2:]
    gone = no_longer_needed(
        versions,
        step=step,
        newest=limit + 2 + newest,
        staleness_limit=limit,
        checkpoints=checkpoints,
        measured=measured,
    )
    kept = set(versions) - set(gone)
    assert measured & set(versions) <= kept
    for at in [step, *checkpoints]:
        assert {version for version in versions if at - limit <= version <= at} <= kept
    assert len(kept - measured) <= limit + 2 + newest + 2 * (limit + 1) + repeated


# ---------------------------------------------------------------- states that are made of others by deltas


def kept_in_memory(folder: Path, chain: Chain, *, mapped: int = 2, until: int | None = None) -> RetainedVersions:
    retained = RetainedVersions(folder, mapped=mapped, in_memory=True)
    for number, version in enumerate(chain.signed[:until]):
        retained.retain(version, chain.snapshot(number), {PREVIOUS_ID: chain.deltas[number]} if number else {})
        settle(retained)
    return retained


def settle(retained: RetainedVersions) -> None:
    """Wait until a copy in the background is written."""
    if retained._copying is not None:
        retained._copying.result()


def written_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".version")


def states_on_disk(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.state"))


def test_a_step_writes_its_delta_and_every_kept_version_can_be_read(tmp_path: Path) -> None:
    chain = Chain(9)
    retained = kept_in_memory(tmp_path, chain)
    assert states_on_disk(tmp_path) == [0]
    assert written_bytes(tmp_path) == STATE_BYTES + sum(map(len, chain.deltas))
    for again in (retained, RetainedVersions(tmp_path, mapped=2, in_memory=True), RetainedVersions(tmp_path, mapped=0)):
        for number in (8, 3, 0, 7, 2):
            assert again.state(Version(number)) == (chain.signed[number].record, chain.states[number])


def test_a_state_that_is_written_while_old_versions_are_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(3)
    retained = kept_in_memory(tmp_path, chain)
    newest = Version(2)
    on_disk = retained._files.states()
    retained.copied = newest
    retained._files.write_state(newest, chain.states[newest], number=0)
    monkeypatch.setattr(retained._files, "states", lambda: on_disk)  # as listed before the copy was complete
    retained.remove([Version(1)], oldest_replayed=0)
    assert states_on_disk(tmp_path) == [0, 2]


def test_after_a_while_the_newest_state_is_written_and_the_older_follow_from_it(tmp_path: Path) -> None:
    chain = Chain(12, changed=0.3)
    retained = kept_in_memory(tmp_path, chain)
    first, copied = states_on_disk(tmp_path)[:2]
    assert first == 0
    assert sum(map(len, chain.deltas[: copied + 1])) >= 0.6 * STATE_BYTES > sum(map(len, chain.deltas[:copied]))
    gone = [Version(number) for number in range(6)]
    retained.remove(gone, oldest_replayed=0)
    assert len(states_on_disk(tmp_path)) == 1
    again = RetainedVersions(tmp_path, mapped=2, in_memory=True)
    assert again.versions() == list(range(6, 12))
    for number in range(6, 12):
        assert again.state(Version(number))[1] == chain.states[number]
    with pytest.raises(CheckpointError, match="no copy of version 5"):
        again.state(Version(5))


def test_bytes_that_later_versions_need_outlive_their_version(tmp_path: Path) -> None:
    chain = Chain(6)
    retained = kept_in_memory(tmp_path, chain)
    retained.remove([Version(number) for number in range(4)], oldest_replayed=4)
    assert states_on_disk(tmp_path) == [0]
    again = RetainedVersions(tmp_path, mapped=2, in_memory=True)
    again.remove_unfinished()
    assert (again.versions(), again.state(Version(5))[1]) == ([4, 5], chain.states[5])


def test_a_delta_without_inverse_keeps_the_older_state_on_disk(tmp_path: Path) -> None:
    chain = Chain(6, whole=frozenset({3}))
    retained = kept_in_memory(tmp_path, chain)
    assert states_on_disk(tmp_path)[0] == 0
    retained.remove([Version(0)], oldest_replayed=0)
    for number in range(1, 6):
        assert RetainedVersions(tmp_path, mapped=1, in_memory=True).state(Version(number))[1] == chain.states[number]


def test_a_version_without_a_usable_delta_is_written_whole(tmp_path: Path) -> None:
    chain = Chain(4)
    retained = kept_in_memory(tmp_path, chain, until=2)
    retained.retain(chain.signed[2], chain.snapshot(2), {})
    assert states_on_disk(tmp_path) == [0, 2]
    (tmp_path / "000000000002.state").unlink()
    retained.retain(chain.signed[3], chain.snapshot(3), {PREVIOUS_ID: chain.deltas[3]})
    assert states_on_disk(tmp_path) == [0, 3], "nothing on disk leads to the version that the delta starts from"


def test_snapshots_are_frozen_in_memory_once_there_is_a_state_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(4)
    retained = RetainedVersions(tmp_path, mapped=2, in_memory=True)

    def freeze(number: int) -> FrozenSnapshot:
        def begin(path: Path, version: Version) -> Write:
            def write(_: Progress) -> None:
                with path.open("r+b") as file:
                    file.write(chain.states[version])

            return Write(chain.signed[version].record.tensors, write)

        return retained.freeze(Version(number), begin).finish()

    for number in range(3):
        frozen = freeze(number)
        assert (frozen.path is not None) == (number == 0)
        retained.retain(chain.signed[number], frozen, {PREVIOUS_ID: chain.deltas[number]} if number else {})
    assert states_on_disk(tmp_path) == [0]
    monkeypatch.setattr("learner.publishing.memory_files.fits_in_memory", lambda _: False)
    spare = freeze(3)
    assert spare.path is None, "version 0 made room"
    assert freeze(3).path is not None


def test_the_base_of_squashed_deltas_moves_forward_in_place(tmp_path: Path) -> None:
    chain = Chain(8)
    kept_in_memory(tmp_path, chain)
    retained = RetainedVersions(tmp_path, mapped=1, in_memory=True)
    places = []
    for number in (1, 2, 4):
        record, state = retained.moving_base(Version(number))
        assert (record.version, state) == (number, chain.states[number])
        assert isinstance(state, memoryview)
        assert isinstance(state.obj, MemoryMap)
        places.append(state.obj.file)
    assert places[0] is places[1] is places[2]
    held = retained.state(Version(6))
    assert retained.moving_base(Version(6))[1] is held[1]
    assert retained.moving_base(Version(7))[1] == chain.states[7]
    assert held[1] == chain.states[6], "what others read is never changed"


def test_a_killed_learner_finds_every_version_that_it_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(4, changed=0.2)
    monkeypatch.setattr("os.fsync", lambda _: None)
    for calls in range(60):
        folder = tmp_path / str(calls)
        folder.mkdir()
        done = 0
        retained = RetainedVersions(folder, mapped=1, in_memory=True)
        with suppress(Crash), crash_after(calls, ("fsync", "rename", "replace", "unlink"), monkeypatch):
            for number, version in enumerate(chain.signed):
                retained.retain(version, chain.snapshot(number), {PREVIOUS_ID: chain.deltas[number]} if number else {})
                done = number + 1
                retained.remove([Version(number - 2)] if number >= 2 else [], oldest_replayed=0)
        with suppress(Crash):
            settle(retained)
        again = RetainedVersions(folder, mapped=1, in_memory=True)
        again.remove_unfinished()
        assert max(again.versions(), default=-1) >= done - 1
        for version in again.versions():
            assert again.state(version)[1] == chain.states[version]


def test_only_the_newest_state_can_be_spent(tmp_path: Path) -> None:
    chain = Chain(4)

    def frozen(retained: RetainedVersions, number: int) -> FrozenSnapshot:
        def begin(path: Path, version: Version) -> Write:
            return Write(
                chain.signed[version].record.tensors, lambda _: path.write_bytes(chain.states[version]) and None
            )

        return retained.freeze(Version(number), begin).finish()

    def kept(retained: RetainedVersions) -> RetainedVersions:
        for number in range(3):
            deltas = {PREVIOUS_ID: chain.deltas[number]} if number else {}
            retained.retain(chain.signed[number], frozen(retained, number), deltas)
        return retained

    assert kept(RetainedVersions(tmp_path, mapped=3, in_memory=True)).spend(Version(2)) is None
    (folder := tmp_path / "one").mkdir()
    retained = kept(RetainedVersions(folder, mapped=3, in_memory=True, newest_only=True))
    retained.map_at_least(5)
    assert retained.state(Version(1))[1] == chain.states[1]
    assert retained.spend(Version(1)) is None, "an older state is made when it is read, and does not replace the newest"
    reader = retained.state(Version(2))
    assert retained.spend(Version(2)) is None
    del reader
    spent = retained.spend(Version(2))
    assert spent is not None
    assert (spent[0], spent[1].view) == (chain.signed[2].record, chain.states[2])
    spent[1].passed(STATE_BYTES)
    del spent
    retained.retain(chain.signed[3], frozen(retained, 3), {PREVIOUS_ID: chain.deltas[3]})
    for number in (3, 2, 0):
        assert retained.state(Version(number))[1] == chain.states[number]
