"""Test the table of what applying a plan would do."""

from __future__ import annotations

from dataclasses import replace

from capacity.questions.application import application_of
from capacity.reports.application import application_sheet
from tests.capacity.sample_fleet import chosen_document, fleet_of, offered


def test_workers_alike_share_a_row_and_prices_that_differ_are_shown() -> None:
    fleet = fleet_of(*(offered(f"local-{number}", usd_per_hour=4.0) for number in (1, 2)), offered("x", state="on"))
    steps = application_of(chosen_document("local-1", "local-2", "donor"), fleet, stop_others=False)
    sheet = application_sheet(steps, replace(fleet, usd_per_hour_max=9.0))
    assert [row[:2] for row in sheet.rows] == [
        ("start", "local-1 ... local-2 (2)"),
        ("not by this run", "donor"),
        ("stays on", "x"),
    ]
    assert [row[4:6] for row in sheet.rows] == [(4.0, 3.6), (None, 3.6), (3.6, None)]
    assert sheet.lines[:2] == (
        "2 to start for 8 $/h, 0 to stop",
        "1 outside the plan stay on; --stop-others stops them",
    )
    assert "at most 9 $/h" in sheet.lines[-1]
