from __future__ import annotations

from pathlib import Path

from peer.relay.draft_file import DraftFile
from rollcast.wire.ids import Version
from rollcast.wire.versions.chunk_store import ChunkStore
from tests.peer.versions import CHUNK_BYTES, CHUNKS, LEARNER, RUN_ID, Published

VERSION = Published(RUN_ID, LEARNER, 1)
(HASHES,) = VERSION.chunk_lists.values()


def draft_of(store: ChunkStore, indices: range, *, chunk_size_bytes: int = CHUNK_BYTES) -> DraftFile:
    draft = DraftFile(store.draft_path, Version(1), chunk_size_bytes)
    for index in indices:
        draft.append(VERSION.chunk(index))
    return draft


def test_the_store_takes_over_what_matches_the_list(tmp_path: Path) -> None:
    for count in (1, 7, CHUNKS):
        store = ChunkStore(tmp_path / str(count), 4)
        draft = draft_of(store, range(count))
        taken = draft.take(VERSION.verified.keyframe, HASHES)
        assert taken is not None
        stored = store.begin(VERSION.verified, VERSION.verified.keyframe, HASHES, taken)
        assert [stored.has(index) for index in range(CHUNKS)] == [index < count for index in range(CHUNKS)]
        assert not store.draft_path.exists()
        for index in range(count, CHUNKS):
            stored.write(index, VERSION.chunk(index))
        stored.verify_state()
        stored.finish()
        assert bytes(stored.state_bytes()) == VERSION.state
        store.close()


def test_chunks_behind_a_wrong_one_are_not_taken_over(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 4)
    draft = draft_of(store, range(3))
    draft.append(bytes(CHUNK_BYTES))
    draft.append(VERSION.chunk(4))
    taken = draft.take(VERSION.verified.keyframe, HASHES)
    assert taken is not None
    assert (taken.chunks, taken.state_hash) == (3, None)
    stored = store.begin(VERSION.verified, VERSION.verified.keyframe, HASHES, taken)
    for index in range(CHUNKS):
        assert stored.write(index, VERSION.chunk(index)) == (index >= 3)
    stored.verify_state()
    assert bytes(stored.state_bytes()) == VERSION.state


def test_what_does_not_match_is_deleted(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 4)
    other = draft_of(store, range(1, 4))  # of other bytes
    assert other.take(VERSION.verified.keyframe, HASHES) is None
    assert not store.draft_path.exists()
    cut_otherwise = draft_of(store, range(2), chunk_size_bytes=2 * CHUNK_BYTES)
    assert cut_otherwise.take(VERSION.verified.keyframe, HASHES) is None
    assert not store.draft_path.exists()


def test_a_draft_that_the_disk_refuses_is_lost(tmp_path: Path) -> None:
    draft = DraftFile(tmp_path / "no folder" / "draft", Version(1), CHUNK_BYTES)
    draft.append(VERSION.chunk(0))
    draft.append(VERSION.chunk(1))
    assert draft.take(VERSION.verified.keyframe, HASHES) is None


def test_a_draft_is_gone_after_a_restart(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, 4)
    draft = draft_of(store, range(3))
    assert store.draft_path.exists()
    assert not ChunkStore(tmp_path, 4).draft_path.exists()
    draft.discard()
    draft.discard()
