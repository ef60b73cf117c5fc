"""Test a store that keeps versions in memory alone."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import Version
from rollcast.wire.versions import state_memory
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import PREVIOUS_ID
from rollcast.wire.versions.state_memory import memory_for
from tests.wire.versions.build import CHUNK, a_state, a_step, begin, changed, put, put_delta

FIRST = a_state(seed=1)
STATES = [FIRST]
for seed in range(5):
    STATES.append(changed(STATES[-1], seed))
STEPS = [a_step(old, new, number + 2) for number, (old, new) in enumerate(itertools.pairwise(STATES))]


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return ChunkStore(tmp_path / "store", 2, memory_only=True)


def follow(store: ChunkStore) -> None:
    for step in STEPS:
        keyframe = store.materialise(put_delta(store, step))
        keyframe.finish()
        keyframe.list_chunks()
        assert bytes(keyframe.state_bytes()) == step.state
        while store.advance(4096):
            pass
        store.prune()


def test_nothing_is_written_and_the_newest_state_is_changed_in_place(store: ChunkStore, tmp_path: Path) -> None:
    first = put(store, 1)
    memory = first.memory
    assert memory is not None
    assert first.read(0) == FIRST[:CHUNK]
    follow(store)
    newest = store.get(6)
    assert newest is not None
    assert newest.memory is memory
    assert newest.read(3) == STATES[-1][3 * CHUNK : 4 * CHUNK], "it can be served"
    assert store.versions() == [6]
    delta = store.get(6, PREVIOUS_ID)
    assert delta is not None
    assert delta.read(0) == STEPS[-1].delta[:CHUNK]
    assert list((tmp_path / "store").rglob("*")) == []
    assert ChunkStore(tmp_path / "store", 2, memory_only=True).versions() == []


def test_a_state_that_is_read_stays(store: ChunkStore) -> None:
    read = put(store, 1).state_bytes()
    follow(store)
    assert bytes(read) == FIRST
    assert store.versions() == [1, 6]
    del read
    store.prune()
    assert store.versions() == [6]


def test_an_unfinished_keyframe_is_discarded(store: ChunkStore) -> None:
    encoding = begin(store, FIRST)
    encoding.write(0, FIRST[:CHUNK])
    assert store.versions() == []
    assert store.discard_encoding(Version(1), 0)
    assert store.get(1) is None


def test_deltas_are_kept_by_number(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "store", 2, keep_deltas=3, memory_only=True)
    put(store, 1)
    follow(store)
    assert [one.version for one in store.finished() if one.encoding_id == PREVIOUS_ID] == [4, 5, 6]


def test_versions_on_disk_from_before_are_removed(tmp_path: Path) -> None:
    put(ChunkStore(tmp_path / "store", 2), 1)
    assert ChunkStore(tmp_path / "store", 2, memory_only=True).versions() == []
    assert list((tmp_path / "store").iterdir()) == []


def test_too_little_memory_is_an_error_and_never_a_file(
    store: ChunkStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 1)
    delta = put_delta(store, STEPS[0])
    monkeypatch.setattr(state_memory, "fits_in_memory", lambda _: False)
    with pytest.raises(StoreError, match="not enough memory"):
        memory_for(1 << 30)
    with pytest.raises(StoreError, match="not enough memory"):
        store.materialise(delta, keep_base=True)
    with pytest.raises(StoreError, match="not enough memory"):
        begin(store, a_state(seed=9), 9)
    assert list((tmp_path / "store").rglob("*")) == []
    assert bytes(store.materialise(delta).state_bytes()) == STATES[1], "in place it takes no more"
