"""Test answers as tables and plots, and spending by day from the journal's rows."""

from __future__ import annotations

import csv
import io
import struct
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from capacity.fleet.billing import Terms
from capacity.fleet.events import Spent
from capacity.fleet.rows import ClosedRow, MarkRow, OpenedRow, Row
from capacity.reports.plots import (
    Moment,
    Point,
    cost_against_broadcast,
    cost_against_staleness,
    timeline,
    utilisation_against_workers,
)
from capacity.reports.spending import SCHEMA, spend_report
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


MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC).timestamp()

TERMS = Terms(usd_per_hour=1.0)

ROWS: list[Row] = [
    OpenedRow(MIDNIGHT - 3600, "run.a.1", "ssh", TERMS),
    OpenedRow(MIDNIGHT - 3600, "run.b.1", "sky", TERMS),
    MarkRow(MIDNIGHT - 10, {"ssh": Spent(1.0, 0.25, 1.0), "sky": Spent(2.0, 0.0, 2.5)}, {}),
    MarkRow(MIDNIGHT + 10, {"ssh": Spent(0.5, 0.0, 0.5)}, {}),
]


def test_each_mark_counts_for_its_day() -> None:
    report = spend_report(ROWS, 100)
    assert [(one.day, one.provider, one.spent) for one in report.days] == [
        ("2026-03-01", "sky", Spent(2.0, 0.0, 2.5)),
        ("2026-03-01", "ssh", Spent(1.0, 0.25, 1.0)),
        ("2026-03-02", "ssh", Spent(0.5, 0.0, 0.5)),
    ]
    assert report.running == {"ssh": 1, "sky": 1}
    assert report.total == Spent(3.5, 0.25, 4.0)
    assert report.usd_per_accepted_rollout == pytest.approx(0.0375)


def test_what_ended_after_the_last_mark_is_not_lost() -> None:
    report = spend_report([*ROWS, ClosedRow(MIDNIGHT + 20, "run.a.1", "ssh", 1.75, 0.25)], 0)
    assert report.days[-1].spent == Spent(0.75, 0.0, 0.5)
    assert report.running == {"sky": 1}
    assert report.usd_per_accepted_rollout is None


def test_the_document_is_versioned_and_has_units() -> None:
    document = spend_report(ROWS, 100).to_json()
    assert document["schema"] == SCHEMA
    assert document["total"] == {"spent_usd": 3.75, "machine_usd": 3.5, "egress_usd": 0.25, "forecast_usd": 4.0}
    assert document["days"][0] == {
        "day": "2026-03-01",
        "provider": "sky",
        "spent_usd": 2.0,
        "machine_usd": 2.0,
        "egress_usd": 0.0,
        "forecast_usd": 2.5,
    }


CURVE = [Point(2, None), Point(3, 30.0), Point(4, 24.0), Point(5, 23.5)]


def _draw_all(path: Path, suffix: str) -> list[Path]:
    paths = [path / f"{number}{suffix}" for number in range(4)]
    cost_against_staleness(paths[0], {"stripes=8": CURVE, "tree": CURVE[:1]}, "8 workers")
    utilisation_against_workers(paths[1], [Point(k, min(1.0, k / 6)) for k in range(9)], 6, "8 workers")
    cost_against_broadcast(paths[2], {"stripes=8": [Point(30, 0.4, "S=4"), Point(60, None, "S=2")]}, "8 workers")
    timeline(paths[3], [Moment(3600.0 * hour, hour % 3, 1.0, 0.9) for hour in range(6)], "6 hours")
    return paths


def test_png_is_drawn(tmp_path: Path) -> None:
    for path in _draw_all(tmp_path, ".png"):
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", head[16:24])
        assert width > 600
        assert height > 400


def test_svg_is_drawn_and_is_xml(tmp_path: Path) -> None:
    for path in _draw_all(tmp_path, ".svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
