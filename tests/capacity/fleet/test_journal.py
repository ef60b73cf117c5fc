"""Test that a fleet's journal restores it, after crashes and on a disk that fails, with sums by provider."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from capacity.fleet.billing import Terms
from capacity.fleet.budget import Account
from capacity.fleet.events import RecordClosed, RecordMark, RecordOpened, Spent
from capacity.fleet.journal import FleetJournal, read_journal
from capacity.fleet.rows import JoinedRow, OpenedRow, Row, decode, encode, fold, row_of
from capacity.fleet.spending import Spending
from capacity.providers.base import WorkerTag
from rollcast.runtime.errors import StoreError


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


def test_damage_before_the_last_line_is_an_error(tmp_path: Path) -> None:
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


TERMS = Terms(usd_per_hour=1.5, egress_usd_per_gb=0.09, upload_bytes_per_second=1e6, minimum_s=60.0)

A, B = WorkerTag("run", "a", 2), WorkerTag("run", "b", 1)

ROWS: list[Row] = [
    row_of(RecordOpened(A, "p", TERMS, 10.0)),
    row_of(RecordOpened(B, "q", TERMS, 11.0)),
    JoinedRow(12.0, str(A), "peer-1"),
    JoinedRow(12.0, str(B), "peer-2"),
    row_of(RecordMark(60.0, {"p": Spent(0.5, 0.1, 0.4), "q": Spent(0.25, 0.0, 0.2)}, {str(A): 77, "gone": 1})),
    row_of(RecordClosed(B, "q", 70.0, 0.3, 0.0)),
    row_of(RecordMark(120.0, {"p": Spent(0.5, 0.0, 0.4)}, {})),
]


def test_rows_survive_being_written() -> None:
    lines = [encode(row) for row in ROWS]
    assert [decode(line) for line in lines] == ROWS
    assert all(line.count(b"\n") == 1 for line in lines)


def test_all_rows_together_are_where_a_manager_goes_on() -> None:
    restored = fold(ROWS).restored()
    assert [(one.tag, one.provider, one.terms, one.sent_bytes) for one in restored.opened] == [(A, "p", TERMS, 77)]
    assert restored.incarnations == {"a": 2, "b": 1}
    assert restored.closed == {"q": Spent(0.3, 0.0, 0.0)}
    assert restored.marked == {"p": Spent(1.0, 0.1, 0.8), "q": Spent(0.25, 0.0, 0.2)}
    assert restored.marked_at == 120.0
    assert fold(ROWS).peers == {str(A): "peer-1"}


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b'{"kind": "other"}', b'{"kind": "mark"}', encode(ROWS[0])[:-5]]
    + [
        json.dumps({**json.loads(encode(ROWS[0])), key: value}).encode() for key, value in (("tag", "x"), ("schema", 2))
    ],
)
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(line)


def test_an_opened_row_carries_all_terms() -> None:
    row = ROWS[0]
    assert isinstance(row, OpenedRow)
    assert row.terms == TERMS


def account(provider: str, machine_usd: float, egress_usd: float = 0.0) -> Account:
    return Account(provider, Terms(usd_per_hour=1.0), 0.0, 0.0, machine_usd=machine_usd, egress_usd=egress_usd)


def test_marks_add_up_to_what_was_spent() -> None:
    spending = Spending({}, {})
    runs, other = account("p", 1.0, 0.5), account("q", 2.0)
    spending.expect("p", 3.6, 1000.0)
    marks = [spending.mark([runs, other])]
    assert marks[0] == {"p": Spent(1.0, 0.5, 1.0), "q": Spent(2.0, 0.0, 0.0)}
    assert spending.mark([runs, other]) == {}
    runs.machine_usd = 1.25
    spending.ended(runs)
    marks.append(spending.mark([other]))
    assert marks[1] == {"p": Spent(0.25, 0.0, 0.0)}
    assert spending.closed_usd == pytest.approx(1.75)


def test_what_a_crash_left_unmarked_is_in_the_next_mark() -> None:
    spending = Spending(closed={"p": Spent(1.0, 0.25, 0.0)}, marked={"p": Spent(0.75, 0.25, 4.0)})
    assert spending.mark([]) == {"p": Spent(0.25, 0.0, 0.0)}
    assert spending.by_provider([]) == {"p": Spent(1.0, 0.25, 4.0)}
