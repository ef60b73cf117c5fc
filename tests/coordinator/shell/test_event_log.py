"""Test that peers' offences are logged, cannot fill the ledger, and move to an archive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.ledger.event_archive import read_segment, segments, write_segment
from coordinator.ledger.store import StoryEntry
from coordinator.shell import event_log
from coordinator.shell.event_log import EventRows
from rollcast.runtime.errors import RunFolderError, StoreError


class Ledger:
    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []

    def record_event(self, kind: str, subject: str, detail: str, *, cause: str) -> asyncio.Future[None]:
        self.rows.append((kind, subject, detail, cause))
        return asyncio.get_running_loop().create_future()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_repeated_events_are_limited_and_counted() -> None:
    ledger, clock, kept = Ledger(), Clock(), list[Any]()
    rows = EventRows(ledger, clock, kept.append)  # type: ignore[arg-type]
    for number in range(50):
        rows.write("penalised", "a", f"no rollout {number}", f"upload {number}")
    rows.write("penalised", "b", "no rollout", "upload 50")
    rows.write("quarantined", "a", "sent 3 corrupt chunks", "peer a")
    assert [row[1:3] for row in ledger.rows] == [
        *[("a", f"no rollout {number}") for number in range(event_log.ROWS_EACH)],
        ("b", "no rollout"),
        ("a", "sent 3 corrupt chunks"),
    ]
    rows.write_left_out()
    assert len(ledger.rows) == event_log.ROWS_EACH + 2
    clock.now += event_log.INTERVAL_S
    rows.write_left_out()
    rows.write("penalised", "a", "again", "upload 51")
    assert ledger.rows[-2:] == [
        ("penalised", "a", "45 times more in 60 s", "penalised a"),
        ("penalised", "a", "again", "upload 51"),
    ]
    assert len(kept) == len(ledger.rows)


async def test_notes_of_our_own_are_all_written_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "SUBJECTS_KEPT", 2)
    ledger = Ledger()
    rows = EventRows(ledger, Clock(), lambda _: None)  # type: ignore[arg-type]
    for number in range(9):
        rows.write("learner_waited", "step 1", str(number), "step 1")
    assert len(ledger.rows) == 9
    for _ in range(6):
        for subject in ("a", "b"):
            rows.write("penalised", subject, "x", "y")
    rows.write("penalised", "c", "x", "y")
    assert ("penalised", "a", "1 times more in 0 s", "penalised a") in ledger.rows
    assert len(rows._written) == 2


async def test_thousands_of_members_that_come_back_write_few_lines_and_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_log, "LINES_EACH", 2)
    ledger, clock = Ledger(), Clock()
    rows = EventRows(ledger, clock, lambda _: None)  # type: ignore[arg-type]
    with capture_logs() as lines:
        for number in range(9):
            rows.write("peer_joined", f"peer {number}", "x as peer", "peer joined")
        rows.write("peer_left", "peer 1", "it went", "peer left")
        clock.now += event_log.LINES_INTERVAL_S
        rows.write("peer_joined", "peer 9", "x as peer", "peer joined")
        rows.write_left_out()
    assert len(ledger.rows) == 11
    joined = [line.get("subject", line.get("more")) for line in lines if line["kind"] == "peer_joined"]
    assert joined == ["peer 0", "peer 1", 7, "peer 9"]
    assert [line["subject"] for line in lines if line["kind"] == "peer_left"] == ["peer 1"]


async def test_lines_that_were_left_out_are_counted_although_no_other_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LINES_EACH", 1)
    clock = Clock()
    rows = EventRows(Ledger(), clock, lambda _: None)  # type: ignore[arg-type]
    with capture_logs() as lines:
        for number in range(3):
            rows.write("peer_joined", f"peer {number}", "x as peer", "peer joined")
        rows.write_left_out()
        clock.now += event_log.LINES_INTERVAL_S
        rows.write_left_out()
        rows.write_left_out()
    assert [line.get("more") for line in lines] == [None, 2]


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
