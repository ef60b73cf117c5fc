from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import CorruptChunk, RollcastError, StoreError
from rollcast.wire.ids import Version
from rollcast.wire.limits import DELTA_BLOCK_BYTES
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import cut
from rollcast.wire.versions.delta import encode_delta
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.wire.versions.build import (
    CHUNK,
    Step,
    a_contradiction,
    a_record,
    a_state,
    a_step,
    begin,
    begin_delta,
    changed,
    fill,
    put,
    put_delta,
)
from tests.wire.versions.crashing_disk import Crash, crash_after

OLD = a_state(seed=1)
NEW = changed(OLD, 2)


def a_store(folder: Path) -> ChunkStore:
    """Return a store that holds version 1, whose state is OLD."""
    store = ChunkStore(folder, 4)
    put(store, 1)
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_state_is_made_verified_finished_and_served(tmp_path: Path) -> None:
    store, step = a_store(tmp_path), a_step(OLD, NEW, 2)
    keyframe = store.materialise(put_delta(store, step))
    assert keyframe.state_held
    assert not keyframe.finished
    assert not keyframe.listed
    assert bytes(keyframe.state_bytes()) == NEW
    assert store.versions() == [1]
    keyframe.verify_state()
    keyframe.finish()
    assert store.versions() == [1, 2]
    keyframe.list_chunks()
    assert keyframe.chunk_list() == step.keyframe_list
    assert b"".join(keyframe.read(index) for index in range(11)) == NEW
    assert names(tmp_path / "2") == ["0.data", "0.list", "1.data", "1.list", "announcement"]
    again = ChunkStore(tmp_path, 4).get(2)
    assert again is not None
    assert again.listed
    again.verify_state()
    assert store.materialise(put_delta(store, step)) is keyframe


def test_a_chain_needs_nothing_durable_in_between(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    middle, last = a_step(OLD, NEW, 2), a_step(NEW, changed(NEW, 3), 3)
    store.materialise(put_delta(store, middle))
    keyframe = store.materialise(put_delta(store, last))
    keyframe.finish()
    assert bytes(keyframe.state_bytes()) == last.state
    assert store.versions() == [1, 3]


def test_most_is_done_before_the_last_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = a_store(tmp_path)
    step = a_step(OLD, a_state(seed=9), 2)
    delta = begin_delta(store, step)
    store.prepare(delta)
    store.prepare(delta)
    assert os.path.getsize(tmp_path / "2" / "0.new") == len(NEW)
    assert not store.advance(1 << 20)
    pieces = [step.delta[start:stop] for start, stop in cut(len(step.delta), CHUNK)]
    for index in range(1, len(pieces)):
        delta.write(index, pieces[index])
    assert not store.advance(1 << 20), "nothing can be applied before the first chunk"
    delta.write(0, pieces[0])
    assert store.advance(1 << 20)
    assert not store.advance(1 << 20)
    monkeypatch.setattr(delta, "read", lambda index: pytest.fail("a chunk is read twice"))
    assert bytes(store.materialise(delta).state_bytes()) == step.state


def test_the_base_is_not_pruned_meanwhile(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 1)
    put(store, 1)
    delta = begin_delta(store, a_step(OLD, NEW, 2))
    store.prepare(delta)
    put(store, 3)
    assert store.prune() == []
    assert not store.discard(Version(1))
    assert "0.new" in names(tmp_path / "2")
    assert store.discard(Version(2))
    assert store.prune() == [(1, 0)]


def test_a_keyframe_under_way_makes_room(tmp_path: Path) -> None:
    store, step = a_store(tmp_path), a_step(OLD, NEW, 2)
    half = store.begin(step.verified, step.verified.keyframe, step.keyframe_list)
    half.write(0, NEW[:CHUNK])
    keyframe = store.materialise(put_delta(store, step))
    keyframe.finish()
    assert store.get(2) is keyframe
    half.write(1, NEW[CHUNK : 2 * CHUNK])
    assert bytes(keyframe.state_bytes()) == NEW


def test_another_base_is_no_base(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 4)
    delta = put_delta(store, a_step(OLD, NEW, 2))
    with pytest.raises(StoreError, match="not in this store"):
        store.prepare(delta)
    begin(store, OLD, 1)
    with pytest.raises(StoreError, match="not the base"):
        store.materialise(delta)
    assert store.discard(Version(1))
    longer = begin(store, OLD + b"more", 1)
    for index, (start, stop) in enumerate(cut(len(OLD) + 4, CHUNK)):
        longer.write(index, (OLD + b"more")[start:stop])
    longer.verify_state()
    with pytest.raises(StoreError, match="other tensors"):
        store.materialise(delta)


@pytest.mark.parametrize("when", ["prepared", "at once"])
@pytest.mark.parametrize("fault", ["other result", "nonsense", "cut short", "goes on", "damaged base"])
def test_a_delta_to_another_state_than_the_signed_one_is_refused(tmp_path: Path, fault: str, when: str) -> None:
    store = a_store(tmp_path)
    good = b"".join(encode_delta(a_record(OLD).tensors, OLD, NEW))
    deltas = {
        "other result": b"".join(encode_delta(a_record(OLD).tensors, OLD, changed(NEW, 5))),
        "nonsense": b"RCD\x01" + b"\xff" * 3000,
        "cut short": good[:-1],
        "goes on": good + b"x",
        "damaged base": good,
    }
    if fault == "damaged base":
        with (tmp_path / "1" / "0.data").open("r+b") as data:
            data.write(bytes([OLD[0] ^ 1]))
    delta = begin_delta(store, a_step(OLD, NEW, 2, delta=deltas[fault]))
    if when == "prepared":
        store.prepare(delta)
    fill(delta, deltas[fault])
    while when == "prepared" and store.advance(1 << 20):
        pass
    delta.finish()
    with pytest.raises(CorruptChunk, match="does not lead to version 2"):
        store.materialise(delta)
    assert store.get(2) is None
    assert "0.new" not in names(tmp_path / "2")
    assert store.versions() == [1]


def test_missing_chunks_and_full_disks_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store, step = a_store(tmp_path), a_step(OLD, NEW, 2)
    delta = begin_delta(store, step)
    with pytest.raises(StoreError, match="cannot be applied"):
        store.materialise(delta)
    fill(delta, step.delta)
    for call in ("posix_fallocate", "pwrite", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(StoreError, match="cannot keep versions"):
                store.materialise(delta)
        assert store.get(2) is None
    base = store.get(1)
    assert base is not None
    assert base.readers == 0
    assert bytes(store.materialise(delta).state_bytes()) == NEW


def test_memory_is_bounded_by_the_block(tmp_path: Path) -> None:
    state = bytes(6 * DELTA_BLOCK_BYTES)
    step = a_step(state, changed(state, 1, share=0.001), 2)
    store = ChunkStore(tmp_path, 4)
    base = begin(store, state, 1)
    fill(base, state)
    base.finish()
    delta = put_delta(store, step)
    tracemalloc.start()
    keyframe = store.materialise(delta)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5 * DELTA_BLOCK_BYTES
    keyframe.list_chunks()
    assert keyframe.chunk_list() == step.keyframe_list


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), share=st.sampled_from([0.0, 0.01, 0.3, 1.0]), budget=st.sampled_from([1, 3000, 1 << 20]))
def test_any_order_of_chunks_makes_the_same_state(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, share: float, budget: int
) -> None:
    new = changed(OLD, 4, share) if share < 1 else a_state(seed=4)
    step = a_step(OLD, new, 2)
    store = a_store(tmp_path_factory.mktemp("store"))
    delta = begin_delta(store, step)
    pieces = [step.delta[start:stop] for start, stop in cut(len(step.delta), CHUNK)]
    prepare_at = data.draw(st.integers(0, len(pieces)))
    for count, index in enumerate(data.draw(st.permutations(range(len(pieces))))):
        if count == prepare_at:
            store.prepare(delta)
        delta.write(index, pieces[index])
        if data.draw(st.booleans()):
            store.advance(budget)
    keyframe = store.materialise(delta)
    keyframe.finish()
    keyframe.list_chunks()
    assert bytes(keyframe.state_bytes()) == new
    assert keyframe.chunk_list() == step.keyframe_list


def test_nothing_is_visible_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash at every disk call from the first chunk to the served keyframe: a restart lists only complete encodings."""
    step = a_step(OLD, NEW, 2)
    for crash_at in range(60):
        folder = tmp_path / str(crash_at)
        a_store(folder).close()
        crashed = _crash_once(folder, step, crash_at, monkeypatch)
        store = ChunkStore(folder, 4)
        found = store.get(2)
        if found is not None and found.finished:
            found.verify_state()
            found.list_chunks()
        if not crashed:
            assert crash_at > 10
            assert found is not None
            return
        keyframe = store.materialise(put_delta(store, step))
        keyframe.finish()
        keyframe.list_chunks()
        assert bytes(keyframe.state_bytes()) == NEW
        store.close()
    pytest.fail("never ran through")


def _crash_once(folder: Path, step: Step, crash_at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    store = ChunkStore(folder, 4)
    with crash_after(crash_at, ("fsync", "replace", "posix_fallocate", "ftruncate", "mkdir", "pwrite"), monkeypatch):
        try:
            delta = begin_delta(store, step)
            store.prepare(delta)
            fill(delta, step.delta)
            delta.finish()
            keyframe = store.materialise(delta)
            keyframe.finish()
            keyframe.list_chunks()
        except Crash:
            return True
        finally:
            store.close()
    return False


def test_keyframes_are_hashed_as_they_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ChunkStore(tmp_path, 4)
    encoding = begin(store, OLD)
    for index in (0, 1, 2, 5):
        encoding.write(index, OLD[index * CHUNK : (index + 1) * CHUNK])
    assert store.advance(2 * CHUNK)
    assert store.advance(2 * CHUNK)
    assert not store.advance(2 * CHUNK), "chunk 3 is awaited"
    fill(encoding, OLD)
    assert encoding.advance_hash(1 << 20)
    encoding.verify_state()
    encoding.finish()
    assert not store.advance(1 << 20)


def test_chunks_that_come_in_order_are_hashed_as_they_are_written(tmp_path: Path) -> None:
    encoding = begin(ChunkStore(tmp_path, 4), OLD)
    chunks = [OLD[start : start + CHUNK] for start in range(0, len(OLD), CHUNK)]

    def write(first: int, stop: int) -> None:
        encoding.write_verified(first, chunks[first:stop])
        encoding.hash_written(first, chunks[first:stop])

    write(0, 2)
    assert not encoding.advance_hash(1 << 20), "they are hashed"
    write(3, 4)
    write(2, 3)
    assert encoding.advance_hash(1 << 20), "chunk 3 came early, and is read from the file"
    write(4, len(chunks))
    assert not encoding.advance_hash(1 << 20)
    encoding.verify_state()
    encoding.hash_written(0, chunks[:1])
    assert encoding.state_held


def test_a_state_that_arrives_wrong_is_noticed_at_its_end(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 4)
    encoding = begin(store, OLD)
    fill(encoding, OLD)
    with (tmp_path / "1" / "0.part").open("r+b") as part:
        part.write(bytes([OLD[0] ^ 1]))
    store.advance(1 << 20)
    with pytest.raises(CorruptChunk):
        encoding.verify_state()


def test_a_record_that_contradicts_its_list_is_noticed_by_a_store_that_hashes_states(tmp_path: Path) -> None:
    wrong, hashes = a_contradiction(OLD)

    def received(name: str, *, hash_states: bool) -> StoredEncoding:
        store = ChunkStore(tmp_path / name, 4, hash_states=hash_states)
        encoding = store.begin(wrong, wrong.keyframe, hashes)
        chunks = [OLD[start:stop] for start, stop in cut(len(OLD), CHUNK)]
        encoding.write_verified(0, chunks)
        encoding.hash_written(0, chunks)
        assert not store.advance(1 << 20)
        return encoding

    with pytest.raises(CorruptChunk, match="does not match its signed hash"):
        received("origin", hash_states=True).verify_state()
    peers = received("peer", hash_states=False)
    peers.verify_state()
    assert peers.state_held, "every chunk of it is the signed one"


def test_a_list_that_is_not_the_signed_one_is_noticed(tmp_path: Path) -> None:
    store, step = a_store(tmp_path), a_step(OLD, NEW, 2)
    keyframe = store.materialise(put_delta(store, step))
    with (tmp_path / "2" / "0.part").open("r+b") as part:
        part.write(bytes([NEW[0] ^ 1]))
    with pytest.raises(CorruptChunk):
        keyframe.list_chunks()
    assert not keyframe.listed


def test_dropping_a_delta_drops_what_was_made_of_it(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    delta = begin_delta(store, a_step(OLD, NEW, 2))
    store.prepare(delta)
    assert store.discard_encoding(Version(2), PREVIOUS_ID)
    assert not (tmp_path / "2").exists()
    assert store.discard(Version(1))
    with pytest.raises(RollcastError):
        store.materialise(delta)
    assert store.get(2, KEYFRAME_ID) is None
