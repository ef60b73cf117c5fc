from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from peer.donor.receipts import Receipt, Receipts
from rollcast.runtime.errors import RunFolderError

DAY = datetime(2026, 11, 22, 8)


def receipt(verdict: str = "accepted") -> Receipt:
    return Receipt(at=f"{DAY:%Y-%m-%dT%H:%M:%S}", lease_id=7, sample_index=1, version=3, tokens=20, verdict=verdict)


def test_verdicts_are_counted_by_day_over_restarts(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path)
    receipts.add([receipt(), receipt(), receipt("late_duplicate")], DAY - timedelta(days=1))
    receipts.add([receipt()], DAY)
    receipts.save()
    again = Receipts(tmp_path)
    assert again.today(DAY) == {"accepted": 1}
    assert again.total() == {"accepted": 3, "late_duplicate": 1}


def test_each_verdict_is_written_down(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path)
    receipts.add([receipt("fenced")], DAY)
    (line,) = (tmp_path / "2026-11-22.jsonl").read_text().splitlines()
    assert json.loads(line)["verdict"] == "fenced"
    assert list(receipts.newest) == [receipt("fenced")]


def test_old_days_make_room(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path)
    for days in range(40):
        receipts.add([receipt()], DAY + timedelta(days=days))
    assert len(list(tmp_path.glob("*.jsonl"))) == 30
    assert receipts.total() == {"accepted": 40}, "counts are kept"


@pytest.mark.parametrize("text", ["", "[]", '{"2026-11-22": 3}', '{"2026-11-22": {"accepted": "many"}}'])
def test_damaged_counts_begin_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "counts.json").write_text(text)
    assert Receipts(tmp_path).total() == {}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    receipts = Receipts(tmp_path / "file")
    with pytest.raises(RunFolderError):
        receipts.add([receipt()], DAY)
    with pytest.raises(RunFolderError):
        receipts.save()
