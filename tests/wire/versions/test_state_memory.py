from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcast.runtime.errors import CorruptChunk, StoreError
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.versions import chunk_store, materialise, state_memory
from rollcast.wire.versions import delta as delta_codec
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import cut
from rollcast.wire.versions.delta import encode_delta
from rollcast.wire.versions.materialise import Materialisation
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID
from rollcast.wire.versions.state_hash import StateHash, state_hash
from rollcast.wire.versions.state_memory import StateMemory, fits_in_memory
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.wire.versions.build import CHUNK, Step, a_record, a_state, a_step, begin_delta, changed, fill, put, put_delta
from tests.wire.versions.crashing_disk import Crash, crash_after

SIZE = 40_000


def chain(length: int, share: float = 0.01) -> list[Step]:
    """Return versions 2, 3 ... each with a delta from the one before; version 1 is ``a_state(seed=1)``."""
    steps, state = [], a_state(seed=1)
    for number in range(length):
        steps.append(a_step(state, changed(state, number, share), number + 2))
        state = steps[-1].state
    return steps


STEPS = chain(6)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChunkStore]:
    """A store that makes states in memory and holds version 1."""
    store = open_store(tmp_path)
    put(store, 1)
    yield store
    store.close()


def open_store(folder: Path) -> ChunkStore:
    return ChunkStore(folder, 2, in_memory=True)


def make(store: ChunkStore, step: Step, *, keep_base: bool = False) -> StoredEncoding:
    keyframe = store.materialise(put_delta(store, step), keep_base=keep_base)
    keyframe.finish()
    assert bytes(keyframe.state_bytes()) == step.state
    return keyframe


def idle(store: ChunkStore) -> None:
    while store.advance(4096):
        pass


def test_a_state_replaces_its_base_in_the_same_memory(store: ChunkStore, tmp_path: Path) -> None:
    first = make(store, STEPS[0])
    memory = first.memory
    second = make(store, STEPS[1])
    assert second.memory is memory
    assert store.get(2) is None
    assert store.versions() == [1, 3]
    assert not first.state_held
    for use in (first.state_bytes, lambda: first.read(0)):
        with pytest.raises(StoreError, match=r"has become a newer version's|no chunk list"):
            use()
    assert sorted(path.name for path in tmp_path.rglob("0.*")) == ["0.data", "0.list"], "only version 1 is on disk"
    second.list_chunks()
    assert second.chunk_list() == STEPS[1].keyframe_list
    assert second.read(3) == STEPS[1].state[3 * 1024 : 4 * 1024]
    with second.state_file() as path:
        assert path.read_bytes() == STEPS[1].state


def test_a_state_in_memory_is_cut_up_where_it_is_mapped(store: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(store, STEPS[0])
    mapped: list[int] = []
    monkeypatch.setattr(StoredEncoding, "state_bytes", lambda one: mapped.append(one.version))
    first.list_chunks()
    assert first.chunk_list() == STEPS[0].keyframe_list
    assert not mapped


def test_a_state_that_is_read_is_not_changed(store: ChunkStore) -> None:
    view = make(store, STEPS[0]).state_bytes()
    part = view[100:200]
    make(store, STEPS[1])
    assert bytes(view) == STEPS[0].state
    assert store.versions() == [1, 2, 3]
    del view
    make(store, STEPS[2])
    assert bytes(part) == STEPS[0].state[100:200], "a part of a view is a reader too"
    assert store.get(3) is None
    del part
    with store.materialise(put_delta(store, STEPS[3])).reader():
        make(store, STEPS[4])
    assert store.versions() == [1, 2, 5, 6]
    make(store, STEPS[5], keep_base=True)
    assert store.versions() == [1, 2, 5, 6, 7]


def test_the_lineage_is_kept_and_leads_to_the_state_again(store: ChunkStore, tmp_path: Path) -> None:
    for step in STEPS:
        make(store, step)
    assert [key[0] for key in store.prune()] == []
    store.close()
    again = open_store(tmp_path)
    assert again.versions() == [1]
    for step in STEPS:
        delta = again.get(step.verified.version, PREVIOUS_ID)
        assert delta is not None
        again.materialise(delta)
    assert again.versions() == [1, 7]
    again.close()


def test_a_long_lineage_stays_while_it_is_applied_again_after_a_restart(store: ChunkStore, tmp_path: Path) -> None:
    steps = chain(40)
    for step in steps:
        make(store, step)
    store.close()
    again = open_store(tmp_path)
    for step in steps:
        delta = again.get(step.verified.version, PREVIOUS_ID)
        assert delta is not None
        newest = again.materialise(delta)
        again.prune()
    assert bytes(newest.state_bytes()) == steps[-1].state
    again.close()


def test_a_wrong_delta_loses_the_base_which_can_be_made_again(store: ChunkStore) -> None:
    make(store, STEPS[0])
    wrong = a_step(STEPS[0].state, STEPS[1].state, 3, delta=a_step(a_state(seed=7), STEPS[1].state, 3).delta)
    with pytest.raises(CorruptChunk, match="does not lead to version 3"):
        store.materialise(put_delta(store, wrong))
    assert store.get(2) is None
    assert store.get(3) is None
    delta = store.get(2, PREVIOUS_ID)
    assert delta is not None
    assert bytes(store.materialise(delta).state_bytes()) == STEPS[0].state


# ---------------------------------------------------------------- deltas that are applied while they arrive


def some_of(store: ChunkStore, step: Step, share: float) -> StoredEncoding:
    """Begin a delta, and write this share of its chunks."""
    delta = begin_delta(store, step)
    store.prepare(delta)
    chunks = [step.delta[start:stop] for start, stop in cut(len(step.delta), CHUNK)]
    for index, chunk in enumerate(chunks[: int(share * len(chunks))]):
        delta.write(index, chunk)
    return delta


@pytest.fixture
def long_step(store: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> Step:
    """A step of many chunks and blocks from version 2, which the store holds in memory."""
    make(store, STEPS[0])
    store.announced = 3
    monkeypatch.setattr(delta_codec, "DELTA_BLOCK_BYTES", 2 * CHUNK)
    new = changed(STEPS[0].state, 9, share=0.5)
    invertible = b"".join(encode_delta(a_record(new).tensors, STEPS[0].state, new, invertible=True))
    return a_step(STEPS[0].state, new, 3, delta=invertible)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
def test_a_delta_is_applied_while_it_arrives(
    store: ChunkStore, long_step: Step, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    base = store.get(2)
    assert base is not None
    memory, delta = base.memory, some_of(store, long_step, share)
    hashed: list[int] = []
    update = StateHash.update
    monkeypatch.setattr(StateHash, "update", lambda self, data: (hashed.append(len(data)), update(self, data)))
    idle(store)
    assert sum(hashed) == pytest.approx(share * len(long_step.state), abs=4 * CHUNK)
    assert store.versions() == [1, 2], "the base is held until the end"
    fill(delta, long_step.delta)
    delta.finish()
    made = store.materialise(delta)
    assert made.memory is memory
    assert bytes(made.state_bytes()) == long_step.state
    assert sum(hashed) == len(long_step.state), "no byte is hashed twice"
    made.list_chunks()
    assert made.chunk_list() == long_step.keyframe_list
    assert store.versions() == [1, 3]


def test_a_delta_that_is_not_announced_is_applied_once_it_is_whole(store: ChunkStore, long_step: Step) -> None:
    store.announced = 2
    delta = some_of(store, long_step, 0.6)
    assert not store.advance(1 << 20)
    fill(delta, long_step.delta)
    assert store.advance(1 << 20)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_who_reads_the_base_meanwhile_gets_it_as_it_was(store: ChunkStore, long_step: Step, share: float) -> None:
    base, delta = store.get(2), some_of(store, long_step, share)
    assert base is not None
    idle(store)
    assert base.changing
    with base.reader():
        assert not base.changing
        assert bytes(base.state_bytes()) == STEPS[0].state
        fill(delta, long_step.delta)
        assert not store.advance(1 << 20)
    assert not store.advance(1 << 20), "a second reader may follow"
    delta.finish()
    assert bytes(store.materialise(delta).state_bytes()) == long_step.state
    assert store.versions() == [1, 3]


def test_a_base_that_is_to_be_kept_is_copied_as_it_was(store: ChunkStore, long_step: Step) -> None:
    delta = some_of(store, long_step, 1.0)
    idle(store)
    delta.finish()
    assert bytes(store.materialise(delta, keep_base=True).state_bytes()) == long_step.state
    base = store.get(2)
    assert base is not None
    assert bytes(base.state_bytes()) == STEPS[0].state


def test_a_delta_that_is_abandoned_leaves_its_base_as_it_was(store: ChunkStore, long_step: Step) -> None:
    base = store.get(2)
    assert base is not None
    some_of(store, long_step, 0.6)
    idle(store)
    assert base.changing
    assert store.discard_encoding(Version(3), PREVIOUS_ID)
    assert not base.changing
    assert bytes(base.state_bytes()) == STEPS[0].state


def test_a_delta_that_proves_malformed_half_way_can_be_undone(store: ChunkStore, long_step: Step) -> None:
    half = len(long_step.delta) // 2
    broken = a_step(STEPS[0].state, long_step.state, 3, delta=long_step.delta[:half] + bytes([0xFF]) * half)
    base, delta = store.get(2), some_of(store, broken, 1.0)
    assert base is not None
    idle(store)
    assert base.changing
    assert bytes(base.state_bytes()) == STEPS[0].state
    delta.finish()
    with pytest.raises(CorruptChunk):
        store.materialise(delta)


def test_a_base_is_lost_if_what_was_applied_has_no_inverse(store: ChunkStore, long_step: Step) -> None:
    other = a_step(STEPS[0].state, bytes(len(long_step.state)), 3)  # shorter as it is than as a difference
    base, delta = store.get(2), some_of(store, other, 1.0)
    assert base is not None
    idle(store)
    with pytest.raises(StoreError, match="cannot be inverted"):
        base.state_bytes()
    assert store.versions() == [1]
    delta.finish()
    with pytest.raises(StoreError, match="has become a newer version's"):
        store.materialise(delta)


def test_two_deltas_do_not_change_one_base_at_the_same_time(store: ChunkStore, long_step: Step, tmp_path: Path) -> None:
    base, delta = store.get(2), put_delta(store, long_step)
    assert base is not None
    first, second = (Materialisation(base, delta, tmp_path / "new", in_memory=True) for _ in range(2))
    assert first.advance(CHUNK, in_place=True)
    assert not second.advance(CHUNK, in_place=True)
    second.finish()
    assert second.memory is not None
    assert bytes(second.memory.view) == long_step.state
    assert not first.advance(CHUNK, in_place=True)
    first.close()
    assert bytes(second.memory.view) == long_step.state
    second.memory.close()


# ---------------------------------------------------------------- where there is no room


def test_without_room_in_memory_states_are_made_on_disk(store: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialise, "fits_in_memory", lambda size_bytes: False)
    assert not make(store, STEPS[0]).in_memory
    assert not make(store, STEPS[1]).in_memory
    assert fits_in_memory(1)
    assert not fits_in_memory(1 << 60)


@pytest.mark.parametrize("limit", ["3000", "max", "x"])
def test_the_limit_of_a_container_counts(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"max": limit, "current": "1500", "stat": "anon 500\ninactive_file 500"}.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    monkeypatch.setattr(state_memory, "_CGROUP", tmp_path)
    assert fits_in_memory(1000)
    assert fits_in_memory(1001) == (limit != "3000")


# ---------------------------------------------------------------- copies on disk


@pytest.fixture
def short_lineages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_store, "_LINEAGE_MOST", 2)


@pytest.mark.usefixtures("short_lineages")
def test_a_long_lineage_is_replaced_by_a_copy_on_disk(store: ChunkStore, tmp_path: Path) -> None:
    make(store, STEPS[0])
    idle(store)
    assert not (tmp_path / "2" / "0.data").exists()
    third = make(store, STEPS[1])
    idle(store)
    assert third.lineage == ((3, 0),)
    assert (tmp_path / "3" / "0.data").read_bytes() == STEPS[1].state
    make(store, STEPS[2])
    held = store.get(3)
    assert held is not None, "the copy on disk takes the place of the state in memory"
    assert not held.in_memory
    assert store.prune() == [(1, KEYFRAME_ID)]
    assert open_store(tmp_path).versions() == [3]


@pytest.mark.usefixtures("short_lineages")
def test_an_older_state_with_a_copy_on_disk_takes_no_memory(store: ChunkStore) -> None:
    for step in STEPS[:2]:
        make(store, step)
    idle(store)
    fourth = make(store, STEPS[2], keep_base=True)
    assert fourth.lineage == ((3, KEYFRAME_ID), (4, PREVIOUS_ID))
    assert store.prune() == [(1, KEYFRAME_ID)]
    held = store.get(3)
    assert held is not None
    assert not held.in_memory
    assert bytes(held.state_bytes()) == STEPS[1].state
    assert store.versions() == [3, 4]


@pytest.mark.usefixtures("short_lineages")
def test_a_state_may_change_while_it_is_copied(store: ChunkStore, tmp_path: Path) -> None:
    for step in STEPS[:2]:
        make(store, step)
    assert store.advance(3000), "the first bytes are copied"
    fourth = make(store, STEPS[2])
    assert store.get(3) is None
    idle(store)
    assert (tmp_path / "3" / "0.data").read_bytes() == STEPS[1].state
    assert fourth.lineage == ((3, 0), (4, 1))
    assert store.versions() == [1, 3, 4]


@pytest.mark.usefixtures("short_lineages")
@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync"])
def test_a_copy_that_fails_costs_nothing_else(store: ChunkStore, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    make(store, STEPS[0])
    delta = put_delta(store, STEPS[1])
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        third = store.materialise(delta)
        idle(store)
    assert len(third.lineage) == 3
    fourth = make(store, STEPS[2])
    idle(store)
    assert store.versions() == [1, 4]
    assert fourth.lineage == ((4, 0),)


def test_a_step_writes_at_most_three_times_its_delta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and copies over three lineages; lists and announcements are left out: here they exceed the deltas."""
    store, written, original = open_store(tmp_path), 0, os.pwrite

    def pwrite(descriptor: int, data: memoryview, start: int) -> int:
        nonlocal written
        if "memfd" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            written += len(data)
        return original(descriptor, data, start)

    put(store, 1)
    monkeypatch.setattr(os, "pwrite", pwrite)
    steps = chain(16, share=0.04)
    for step in steps:
        make(store, step)
        idle(store)
        store.prune()
    assert len(list(tmp_path.rglob("0.data"))) <= 2
    assert written > sum(len(step.delta) for step in steps)
    assert written <= 3 * sum(len(step.delta) for step in steps)
    store.close()


def test_a_crash_at_any_disk_call_leaves_a_state_that_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each crash the newest state made again is the last one that was held, or the one after it, bit by bit."""
    monkeypatch.setattr(chunk_store, "_LINEAGE_MOST", 1)
    states = {step.verified.version: step.state for step in STEPS} | {Version(1): a_state(seed=1)}
    for crash_at in range(200):
        folder = tmp_path / str(crash_at)
        held, crashed = _run_until(folder, crash_at, monkeypatch)
        store = open_store(folder)
        newest = _recover(store)
        assert newest.version in (held, held + 1)
        assert bytes(newest.state_bytes()) == states[newest.version]
        assert state_hash(newest.state_bytes()) == newest.verified.record.state_hash
        for version in store.versions():
            encoding = store.get(version)
            assert encoding is not None
            assert bytes(encoding.state_bytes()) == states[version]
        store.close()
        if not crashed:
            assert crash_at > 30
            return
    pytest.fail("never ran through")


def _run_until(folder: Path, crash_at: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, bool]:
    """Make all steps; returns the last version held, and whether the process died before the end."""
    store, held = open_store(folder), 1
    put(store, 1)
    with crash_after(crash_at, ("fsync", "replace", "posix_fallocate", "pwrite", "unlink"), monkeypatch):
        try:
            for step in STEPS[:2]:
                make(store, step)
                held = step.verified.version
                store.advance(3000)
                store.prune()
            idle(store)
            store.prune()
        except Crash:
            return held, True
        finally:
            store.close()
    return held, False


def _recover(store: ChunkStore) -> StoredEncoding:
    """Make the newest state from what a killed process left, as peer.relay.version_book does."""
    newest = store.get(store.versions()[-1])
    assert newest is not None
    while (delta := store.get(newest.version + 1, EncodingId(PREVIOUS_ID))) is not None and delta.finished:
        newest = store.materialise(delta)
    return newest


def test_memory_is_freed_with_its_last_user(tmp_path: Path) -> None:
    memory = StateMemory(SIZE)
    memory.close()
    memory.close()
    memory.view[:3] = b"abc"
    before = len(os.listdir("/proc/self/fd"))
    store = open_store(tmp_path)
    put(store, 1)
    make(store, STEPS[0])
    make(store, STEPS[1])
    store.close()
    del store
    assert len(os.listdir("/proc/self/fd")) <= before
