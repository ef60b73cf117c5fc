from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import MalformedMessage, StoreError
from rollcast.wire.ids import Version
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import cut
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID, VerifiedVersion
from tests.wire.versions.build import CHUNK, IDENTITY, a_state, a_step, a_version, begin, changed, fill, put, put_delta
from tests.wire.versions.crashing_disk import Crash, crash_after


def test_a_restart_resumes_with_the_verified_chunks(tmp_path: Path) -> None:
    state = a_state()
    encoding = begin(ChunkStore(tmp_path, 4), state)
    for index in (0, 3, 7):
        encoding.write(index, state[index * CHUNK : (index + 1) * CHUNK])
    with (tmp_path / "1" / "0.part").open("r+b") as part:
        part.seek(3 * CHUNK)
        part.write(b"\0\0\0\0")
    again = begin(ChunkStore(tmp_path, 4), state)
    assert [index for index in range(11) if again.has(index)] == [0, 7]
    fill(again, state)
    again.finish()
    assert bytes(again.state_bytes()) == state


def test_a_restart_lists_complete_versions_only(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 4)
    put(store, 1)
    put(store, 2)
    begin(store, a_state(seed=3), 3)
    (tmp_path / "notes").mkdir()
    (tmp_path / "007").mkdir()
    (tmp_path / "9").mkdir()
    again = ChunkStore(tmp_path, 4)
    assert again.versions() == [1, 2]
    newest = again.get(2)
    assert newest is not None
    newest.verify_state()
    assert newest.read(0) == a_state(seed=2)[:CHUNK]
    assert begin(again, a_state(seed=2), 2) is newest
    assert again.get(3) is None


@pytest.mark.parametrize("name", ["0.data", "announcement"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "garbage"])
def test_a_damaged_version_is_not_listed(tmp_path: Path, name: str, damage: str) -> None:
    put(ChunkStore(tmp_path, 4), 1)
    path = tmp_path / "1" / name
    match damage:
        case "truncated":
            path.write_bytes(path.read_bytes()[:-1])
        case "missing":
            path.unlink()
        case "garbage":
            path.write_bytes(b"\xff" * 37)
    again = ChunkStore(tmp_path, 4)
    assert again.versions() == []
    assert put(again, 1).finished
    assert again.versions() == [1]


@pytest.mark.parametrize("damage", [b"", b"\xff" * 37, None])
def test_a_damaged_chunk_list_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    put(ChunkStore(tmp_path, 4), 1)
    path = tmp_path / "1" / "0.list"
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    store = ChunkStore(tmp_path, 4)
    encoding = store.get(1)
    assert encoding is not None
    assert store.versions() == [1]
    assert not encoding.listed
    for use in (encoding.chunk_list, lambda: encoding.read(0)):
        with pytest.raises(StoreError, match="no chunk list"):
            use()
    encoding.list_chunks()
    encoding.list_chunks()
    assert encoding.read(0) == a_state(seed=1)[:CHUNK]
    again = ChunkStore(tmp_path, 4).get(1)
    assert again is not None
    assert again.chunk_list() == encoding.chunk_list()


def test_a_wrong_chunk_list_is_refused(tmp_path: Path) -> None:
    verified, hashes = a_version(a_state(), IDENTITY)
    store = ChunkStore(tmp_path, 4)
    for wrong in (hashes[:-32], hashes + hashes[:32], b"x" + hashes[1:], b""):
        with pytest.raises(MalformedMessage):
            store.begin(verified, verified.keyframe, wrong)
    assert list(tmp_path.iterdir()) == []


def test_prune_keeps_the_newest_and_the_read(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 2)
    oldest = put(store, 1)
    for version in (2, 3, 4, 5):
        put(store, version)
    begin(store, a_state(seed=6), 6)
    with oldest.reader():
        assert store.prune() == [(2, 0), (3, 0)]
        assert store.versions() == [1, 4, 5]
    state = oldest.state_bytes()
    assert store.prune() == [(1, 0)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5", "6"]
    assert bytes(state) == a_state(seed=1)
    assert oldest.read(0) == a_state(seed=1)[:CHUNK]


def test_prune_keeps_spared_encodings(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 2)
    for version in (1, 2, 3, 4):
        put(store, version)
    assert store.prune({(Version(2), KEYFRAME_ID)}) == [(1, 0)]
    assert store.prune() == [(2, 0)]


def test_prune_removes_unfinished_encodings_of_an_earlier_process(tmp_path: Path) -> None:
    begin(ChunkStore(tmp_path, 4), a_state(seed=1), 1)
    store = ChunkStore(tmp_path, 4)
    assert store.prune() == []
    begin(store, a_state(seed=2), 2)
    put(store, 3)
    assert store.prune() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]
    assert store.discard(store.versions()[0])
    assert store.versions() == []


def test_deltas_outlive_their_states(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 2, keep_deltas=3)
    follow(store, 6)
    removed = store.prune()
    assert store.versions() == [4, 5]
    assert [(one.version, one.encoding_id) for one in store.finished()] == [(3, 1), (4, 0), (4, 1), (5, 0), (5, 1)]
    assert removed == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4", "5"]
    assert sorted(path.name for path in (tmp_path / "3").iterdir()) == ["1.data", "1.list", "announcement"]
    again = ChunkStore(tmp_path, 2)
    assert again.versions() == [4, 5]
    assert len(again.finished()) == 5


def test_bytes_are_limited_too(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 8, keep_bytes=3 * len(a_state()))
    follow(store, 6)
    store.prune()
    assert store.versions() == [4, 5]
    assert sum(one.manifest.size_bytes for one in store.finished()) <= 3 * len(a_state())


def test_a_base_stays_as_long_as_adapters_over_it(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 1, keep_bytes=2 * len(a_state()))
    base = put(store, 0).verified
    for version in (1, 2, 3):
        put(store, version, base=base)
    assert store.prune() == [(1, 0), (2, 0)]
    assert store.versions() == [0, 3], "it counts towards the bytes, and is not one of the newest"
    put(store, 4)
    assert store.prune() == [(3, 0)]
    assert store.prune() == [(0, 0)], "nothing needs it any more"


def test_adapters_are_held_once_their_base_is(tmp_path: Path) -> None:
    base, hashes = a_version(a_state(seed=0), IDENTITY, 0)
    part = ChunkStore(tmp_path, 1).begin(base, base.keyframe, hashes)
    part.write(0, a_state(seed=0)[:CHUNK])
    part.close()
    store = ChunkStore(tmp_path, 1)
    put(store, 7, base=base)
    assert store.versions() == []
    assert store.prune() == []
    resumed = store.begin(base, base.keyframe, hashes)
    assert resumed.has(0), "retention kept what an earlier process had received of the base"
    put(store, 0)
    assert store.versions() == [0, 7]


def test_one_encoding_of_a_version_can_go(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 8)
    follow(store, 2)
    assert store.discard_encoding(Version(1), PREVIOUS_ID)
    assert [(one.version, one.encoding_id) for one in store.finished()] == [(0, 0), (1, 0)]
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["0.data", "0.list", "announcement"]
    keyframe = store.get(0)
    assert keyframe is not None
    with keyframe.reader():
        assert not store.discard_encoding(Version(0), KEYFRAME_ID)
    assert store.discard_encoding(Version(0), KEYFRAME_ID)
    assert not (tmp_path / "0").exists()


def follow(store: ChunkStore, count: int) -> None:
    """Receive version 0, and make each later version from the previous one."""
    put(store, 0)
    state = a_state(seed=0)
    for version in range(1, count):
        state, old = changed(state, version), state
        keyframe = store.materialise(put_delta(store, a_step(old, state, version)))
        keyframe.finish()
        keyframe.list_chunks()


def test_a_version_removed_under_its_writer_cannot_be_finished(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 4)
    encoding = begin(store, a_state())
    assert store.discard(encoding.version)
    fill(encoding, a_state())
    with pytest.raises(StoreError):
        encoding.finish()


def test_the_same_number_with_other_bytes_replaces_the_stored_version(tmp_path: Path) -> None:
    put(ChunkStore(tmp_path, 4), 1)
    store = ChunkStore(tmp_path, 4)
    old = store.get(1)
    assert old is not None
    with old.reader(), pytest.raises(StoreError, match="being read"):
        begin(store, a_state(seed=7), 1)
    fresh = begin(store, a_state(seed=7), 1)
    assert bytes(fresh.have) == b"\0\0"
    assert store.versions() == []


def test_nothing_is_visible_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash at every disk call of begin and finish: a restart lists only complete encodings."""
    state = a_state()
    for crash_at in range(40):
        folder = tmp_path / str(crash_at)
        if not _crash_once(folder, state, crash_at, monkeypatch):
            assert crash_at > 5
            return
        for encoding in (ChunkStore(folder, 4).get(1), begin(ChunkStore(folder, 4), state)):
            if encoding is not None and encoding.finished:
                encoding.verify_state()
        again = begin(ChunkStore(folder, 4), state)
        fill(again, state)
        again.finish()
        assert bytes(again.state_bytes()) == state
    pytest.fail("never ran through")


def _crash_once(folder: Path, state: bytes, crash_at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    store = ChunkStore(folder, 4)
    with crash_after(crash_at, ("fsync", "replace", "posix_fallocate", "ftruncate", "mkdir"), monkeypatch):
        try:
            encoding = begin(store, state)
            fill(encoding, state)
            encoding.finish()
        except Crash:
            return True
    return False


def test_a_folder_that_is_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreError):
        ChunkStore(tmp_path / "store", 4)


def test_a_folder_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "run" / "store", 4)
    put(store, 1)
    shutil.rmtree(tmp_path / "run")
    put(store, 2)
    assert store.versions() == [1, 2]
    store.close()
    with closing(ChunkStore(tmp_path / "run" / "store", 4)) as again:
        assert again.versions() == [2]


def test_close_gives_descriptors_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = ChunkStore(tmp_path, 4)
    put(store, 1)
    begin(store, a_state(seed=2), 2)
    assert len(os.listdir("/proc/self/fd")) == before + 2
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before
    store.close()


@given(order=st.permutations(range(11)), stop_at=st.integers(0, 11))
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_with_a_restart_in_the_middle(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], stop_at: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    state = a_state()
    pieces = [state[start:stop] for start, stop in cut(len(state), CHUNK)]
    encoding = begin(ChunkStore(folder, 4), state)
    for index in order[:stop_at]:
        encoding.write(index, pieces[index])
    again = begin(ChunkStore(folder, 4), state)
    assert [index for index in range(11) if not again.has(index)] == sorted(order[stop_at:])
    for index in order[stop_at:]:
        again.write(index, pieces[index])
    again.finish()
    assert bytes(again.state_bytes()) == state


def test_stored_announcements_can_be_verified_again(tmp_path: Path) -> None:
    put(ChunkStore(tmp_path, 4), 1)
    encoding = ChunkStore(tmp_path, 4).get(1)
    assert encoding is not None
    assert isinstance(encoding.verified, VerifiedVersion)
    assert encoding.verified.announcement.record.public_key == IDENTITY.public_key
