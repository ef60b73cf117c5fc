from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcast.runtime.errors import CorruptChunk, StoreError
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.versions import chunk_store, materialise, state_memory
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.state_memory import StateMemory, fits_in_memory
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.wire.versions.build import Step, a_state, a_step, changed, put, put_delta
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
