from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from capacity.questions.plan_json import json_schema
from tests.cli.capacity.capacity_calls import call
from tests.cli.capacity.small_pool import small_pool


def test_workers_are_listed_cheapest_first_and_alike_share_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = call(capsys, "offers", *small_pool(tmp_path))
    lines = found.out.splitlines()
    assert found.out.index("donor") < found.out.index("3 x cheap") < found.out.index("3 x dear")
    assert any(line.startswith("8 workers") for line in lines)
    rows = list(csv.DictReader(io.StringIO(call(capsys, "offers", *small_pool(tmp_path), "--format", "csv").out)))
    assert len(rows) == 8


def test_workers_are_filtered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--usd-per-hour-at-most", "0.5", "--region", "la", "--format", "json")
    rows = call(capsys, "offers", *small_pool(tmp_path), *words).json["rows"]
    assert {row["worker_id"] for row in rows} == {"cheap-1", "cheap-2", "cheap-3"}


def test_skipped_rows_are_listed_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "offers", "skipped", *small_pool(tmp_path), "--format", "json")
    assert [(row["worker_id"], row["reason"]) for row in found.json["rows"]] == [("free", "zero")]


@pytest.mark.parametrize("what", ["columns", "demand", "hardware", "models", "lengths", "prices"])
def test_what_may_be_written_is_listed(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "offers", what, "--format", "json")
    assert len(found.json["rows"]) >= 3
    assert call(capsys, "offers", what).status == 0


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "schema").out == json_schema()
