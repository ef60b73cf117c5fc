from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollcast.runtime.errors import CorruptChunk, MalformedMessage, StoreError
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.stored_encoding import store_error
from tests.wire.versions.build import CHUNK, a_state, begin, fill, put


def test_a_version_arrives_chunk_by_chunk(tmp_path: Path) -> None:
    state = a_state()
    store = ChunkStore(tmp_path / "store", 4)
    encoding = begin(store, state)
    assert not any(encoding.has(index) for index in range(11))
    assert encoding.write(10, state[10 * CHUNK :])
    assert not encoding.write(10, state[10 * CHUNK :])
    assert encoding.has(10)
    assert not encoding.has(0)
    assert not encoding.has(11)
    assert encoding.read(10) == state[10 * CHUNK :]
    assert store.versions() == []
    fill(encoding, state)
    assert encoding.complete
    assert not encoding.finished
    encoding.verify_state()
    encoding.finish()
    encoding.finish()
    assert store.versions() == [1]
    assert bytes(encoding.state_bytes()) == state


def test_bad_chunks_never_reach_the_disk(tmp_path: Path) -> None:
    state = a_state()
    encoding = begin(ChunkStore(tmp_path, 4), state)
    with pytest.raises(CorruptChunk):
        encoding.write(0, b"x" * CHUNK)
    with pytest.raises(CorruptChunk):
        encoding.write(1, state[:CHUNK])
    with pytest.raises(CorruptChunk):
        encoding.write(0, state[: CHUNK - 1])
    for index in (11, -1, 2**31):
        with pytest.raises(MalformedMessage):
            encoding.write(index, state[:CHUNK])
    assert (tmp_path / "1" / "0.part").read_bytes() == bytes(len(state))
    with pytest.raises(StoreError):
        encoding.read(0)


def test_a_flipped_bit_on_disk_is_noticed(tmp_path: Path) -> None:
    put(ChunkStore(tmp_path, 4), 1)
    with (tmp_path / "1" / "0.data").open("r+b") as data:
        data.write(bytes([a_state(seed=1)[0] ^ 1]))
    encoding = ChunkStore(tmp_path, 4).get(1)
    assert encoding is not None
    with pytest.raises(CorruptChunk):
        encoding.verify_state()
    with pytest.raises(StoreError, match="changed on disk"):
        encoding.read(0)


def test_an_unfinished_one_has_no_state(tmp_path: Path) -> None:
    encoding = begin(ChunkStore(tmp_path, 4), a_state())
    for use in (encoding.finish, encoding.verify_state, encoding.state_bytes, encoding.state_file().__enter__):
        with pytest.raises(StoreError):
            use()


def test_the_file_of_a_state_in_use_keeps_its_name(tmp_path: Path) -> None:
    """A state that was made from a delta is loaded before it is durable, and is renamed meanwhile."""
    encoding = begin(ChunkStore(tmp_path, 4), a_state())
    fill(encoding, a_state())
    for _ in range(2):  # from both of its names
        with encoding.state_file() as path:
            encoding.finish()
            assert path.read_bytes() == a_state()
            assert encoding.readers == 1
        assert not path.exists()


def test_a_state_file_left_by_a_killed_process_is_replaced(tmp_path: Path) -> None:
    put(ChunkStore(tmp_path, 4), 1)
    (tmp_path / "1" / "0.loading").write_bytes(b"older")
    encoding = ChunkStore(tmp_path, 4).get(1)
    assert encoding is not None
    with encoding.state_file() as path:
        assert path.read_bytes() == a_state(seed=1)


def test_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = ChunkStore(tmp_path, 4)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreError) as problem:
            begin(store, a_state())
    assert "free some space" in problem.value.fix
    encoding = begin(store, a_state())
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StoreError):
        encoding.write(0, a_state()[:CHUNK])
    assert not encoding.has(0)


def test_a_file_system_that_cannot_reserve_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    assert put(ChunkStore(tmp_path, 4), 1).finished


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: pwrite(descriptor, data[:100], at))
    monkeypatch.setattr(os, "pwritev", lambda descriptor, views, at: pwrite(descriptor, views[0][:100], at))
    assert put(ChunkStore(tmp_path, 4), 1).finished


def test_threads_may_write_side_by_side(tmp_path: Path) -> None:
    state = a_state(256 * CHUNK)
    encoding = begin(ChunkStore(tmp_path, 4), state)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: encoding.write(index, state[index * CHUNK : (index + 1) * CHUNK]), range(256)))
    assert encoding.complete


def test_a_read_only_disk_is_explained(tmp_path: Path) -> None:
    assert store_error(tmp_path, OSError(errno.EROFS, "read-only")).fix.startswith("make the folder writable")
