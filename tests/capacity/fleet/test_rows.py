"""What is written down of a fleet leads back to it."""

from __future__ import annotations

import json

import pytest

from capacity.fleet.billing import Terms
from capacity.fleet.events import RecordClosed, RecordMark, RecordOpened, Spent
from capacity.fleet.rows import JoinedRow, OpenedRow, Row, decode, encode, fold, row_of
from capacity.providers.base import WorkerTag

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
