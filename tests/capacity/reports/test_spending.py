"""Spending by day, from the journal's rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from capacity.fleet.billing import Terms
from capacity.fleet.events import Spent
from capacity.fleet.rows import ClosedRow, MarkRow, OpenedRow, Row
from capacity.reports.spending import SCHEMA, spend_report

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
