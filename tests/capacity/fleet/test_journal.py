"""The journal after crashes, and on a disk that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from capacity.fleet.journal import FleetJournal, read_journal
from rollcast.runtime.errors import StoreError
from tests.capacity.fleet.test_rows import ROWS


def test_rows_are_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "providers" / "journal.jsonl"
    assert read_journal(path) == []
    journal = FleetJournal.open(path)
    for row in ROWS:
        journal.append(row)
    journal.close()
    again = FleetJournal.open(path)
    assert read_journal(path) == ROWS
    assert again.content.restored() == journal.content.restored()
    assert path.stat().st_mode & 0o777 == 0o600
    again.close()


@pytest.mark.parametrize("torn", range(1, 40, 7))
def test_a_line_that_was_not_finished_is_cut_off(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "journal.jsonl"
    journal = FleetJournal.open(path)
    journal.append(ROWS[0])
    journal.append(ROWS[1])
    journal.close()
    path.write_bytes(path.read_bytes()[:-torn])
    assert read_journal(path) == ROWS[:1]
    again = FleetJournal.open(path)
    again.append(ROWS[1])
    again.close()
    assert read_journal(path) == ROWS[:2]


def test_damage_before_the_end_is_said(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"{}\n{}\n")
    with pytest.raises(StoreError, match=r"cannot be used") as found:
        FleetJournal.open(path)
    assert "line 1" in found.value.cause


def test_a_write_that_fails_leaves_no_half_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FleetJournal.open(tmp_path / "journal.jsonl")
    journal.append(ROWS[0])
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:20])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="cannot be used"):
        journal.append(ROWS[1])
    monkeypatch.undo()
    journal.append(ROWS[1])
    journal.close()
    assert read_journal(journal.path) == ROWS[:2]
