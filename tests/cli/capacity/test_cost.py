"""`rollcast capacity cost` on a run folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capacity.fleet.rows import encode
from coordinator.fleet.setup import journal_path
from coordinator.ledger.sqlite import Ledger
from rollcast.cli.capacity.cost import cost
from rollcast.cli.main import app
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder
from tests.capacity.reports.test_spending import ROWS


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    await Ledger.open(RunFolder(tmp_path).ledger).close()
    path = journal_path(tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"".join(encode(row) for row in ROWS))
    return tmp_path


def test_a_table_has_a_row_a_day_and_provider(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cost(run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("2026")] == [
        ["2026-03-01", "sky", "2.0000", "0.0000", "2.0000", "2.5000", "-20.0%"],
        ["2026-03-01", "ssh", "1.0000", "0.2500", "1.2500", "1.0000", "+25.0%"],
        ["2026-03-02", "ssh", "0.5000", "0.0000", "0.5000", "0.5000", "+0.0%"],
    ]
    assert "total 3.7500 $ of 4.0000 $ forecast" in lines
    assert "running: 1 at sky, 1 at ssh" in lines


def test_json_is_alone_on_stdout(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["capacity", "cost", str(run), "--json"], exit_on_error=False, result_action="return_value") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total"]["spent_usd"] == 3.75
    assert (document["accepted_rollouts"], document["usd_per_accepted_rollout"]) == (0, None)


def test_a_run_without_accounts_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="has no accounts"):
        cost(tmp_path)
