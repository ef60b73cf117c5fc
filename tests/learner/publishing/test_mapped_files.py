from __future__ import annotations

from pathlib import Path

import pytest

from learner.publishing.mapped_files import STRETCH_BYTES, chunk_hashes_of, give_back, hash_of, map_file, stretches
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.state_hash import state_hash


def mapped(folder: Path, data: bytes) -> memoryview:
    path = folder / "state"
    path.write_bytes(data)
    found = map_file(path)
    path.unlink()
    return found


@pytest.mark.parametrize("size", [1, STRETCH_BYTES, 2 * STRETCH_BYTES + 12_345])
def test_hashes_are_those_of_the_whole(tmp_path: Path, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    for state in (data, mapped(tmp_path, data)):
        assert hash_of(state) == state_hash(data)
        for chunk_size_bytes in (8 << 10, 5000):
            assert chunk_hashes_of(state, chunk_size_bytes) == chunk_list(data, chunk_size_bytes)
        assert b"".join(stretches(state)) == data


def test_pages_that_were_given_back_are_not_resident(tmp_path: Path) -> None:
    state = mapped(tmp_path, bytes(4 * STRETCH_BYTES))
    before = _resident_file_bytes()
    assert not any(state[::4096])
    read = _resident_file_bytes()
    give_back(state)
    assert read - before >= 4 * STRETCH_BYTES
    assert _resident_file_bytes() - before < STRETCH_BYTES
    assert state[-1] == 0
    give_back(b"not mapped")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        mapped(tmp_path, b"")


def _resident_file_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile:"))
