from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger.event_archive import read_segment, segments, write_segment
from coordinator.ledger.store import StoryEntry
from rollcast.runtime.errors import RunFolderError, StoreError


def entries(first: int, count: int = 100) -> list[StoryEntry]:
    return [StoryEntry(number, 1.5, "peer", "p\n1", "joined", "peer p1") for number in range(first, first + count)]


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "events", entries(1), 1 << 20)
    assert write_segment(tmp_path / "events", entries(1), 1 << 20) == path
    write_segment(tmp_path / "events", entries(101), 1 << 20)
    found = [one for segment in segments(tmp_path / "events") for one in read_segment(segment)]
    assert found == entries(1, 200)


def test_the_oldest_segments_are_deleted_beyond_the_bound(tmp_path: Path) -> None:
    size = write_segment(tmp_path, entries(1), 1 << 20).stat().st_size
    for first in (101, 201, 301):
        write_segment(tmp_path, entries(first), int(size * 2.5))
    assert [next(read_segment(one)).order for one in segments(tmp_path)] == [201, 301]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a file")
    with pytest.raises(RunFolderError, match="events"):
        write_segment(tmp_path / "events", entries(1), 1 << 20)


@pytest.mark.parametrize("spoilt", [b"", b"not zstd", b"\x28\xb5\x2f\xfd"])
def test_a_damaged_segment_is_named(tmp_path: Path, spoilt: bytes) -> None:
    path = write_segment(tmp_path, entries(1), 1 << 20)
    path.write_bytes(spoilt)
    with pytest.raises(StoreError, match=path.name):
        list(read_segment(path))
