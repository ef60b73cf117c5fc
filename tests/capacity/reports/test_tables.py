from __future__ import annotations

import csv
import io
from html.parser import HTMLParser

from capacity.reports.tables import Column, Sheet, csv_of, html_of, records_of, shown

SHEET = Sheet(
    "workers",
    (Column("on", ""), Column("worker_id", "worker"), Column("usd_per_hour", "$/h", 2), Column("why", "why")),
    ((True, "a, <b>", 0.123456, None), (False, "c", 1234.5, "too slow")),
    marked=0,
    lines=("1 of 2 & more",),
)


def test_cells_read_well() -> None:
    assert [shown(None), shown(True), shown(False), shown(1234.5, 1), shown(0.25), shown(12345), shown("x")] == [
        *("-", "✓", "", "1,234.5", "0.25", "12,345", "x")
    ]


def test_zero_has_no_sign() -> None:
    assert (shown(-0.0004, 3), shown(-0.0006, 3)) == ("0.000", "-0.001")


def test_csv_keeps_figures_and_text_whole() -> None:
    assert list(csv.reader(io.StringIO(csv_of(SHEET)))) == [
        ["on", "worker_id", "usd_per_hour", "why"],
        ["1", "a, <b>", "0.123456", ""],
        ["0", "c", "1234.5", "too slow"],
    ]


def test_records_are_objects_by_key() -> None:
    assert records_of(SHEET)[1] == {"on": False, "worker_id": "c", "usd_per_hour": 1234.5, "why": "too slow"}


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_html_is_whole_and_escaped() -> None:
    page = html_of("plan", [SHEET])
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert "a, <b>" in reader.text
    assert "1 of 2 & more" in reader.text
    assert page.count("class=chosen") == 1
