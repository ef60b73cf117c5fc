from __future__ import annotations

from pathlib import Path

import pytest

from capacity.inputs.calibration import calibrate
from capacity.inputs.pool_checks import check_pool
from capacity.inputs.run_records import RunRecords
from capacity.reports.calibrated_pool import calibrated_run, calibration_sheets
from rollcast.cli.capacity import calibrate as capacity_calibrate
from rollcast.runtime.errors import RunFolderError
from tests.capacity.inputs.test_calibration import records
from tests.cli.capacity.capacity_calls import call


def test_what_was_fitted_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(capacity_calibrate, "read_run", lambda folder: records())
    found = call(capsys, "calibrate", "runs/local")
    assert found.status == 0
    for words in ("t_train_s", "t_bcast_s", "2 peers made enough rollouts"):
        assert words in found.out
    document = call(capsys, "calibrate", "runs/local", "--format", "json").json
    assert document["schema"] == "rollcast.capacity.calibrate/1"
    assert len(document["peers"]) == 2
    assert document["demand"]["t_train_s"] > 0


def test_it_becomes_a_pool_that_links_are_added_to() -> None:
    fitted = calibrate(records())
    run = calibrated_run(fitted, "local")
    links = {"upload_mbit_per_second": 500, "download_mbit_per_second": 500}
    bare = check_pool(run.rows, links)
    assert {one.column for one in bare.skipped} == {"usd_per_hour"}
    pool = check_pool(run.rows, {**links, "donated": True})
    assert [row.rollouts_per_second for row in pool.taken] == [peer.speed.rollouts_per_second for peer in fitted.peers]
    assert run.demand["t_train_s"] == fitted.t_train_s.value
    assert [sheet.title for sheet in calibration_sheets(fitted)] == ["calibration", "peers"]


def test_a_run_that_has_hardly_begun_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match="cannot read the records"):
        call(capsys, "calibrate", str(tmp_path))
    monkeypatch.setattr(capacity_calibrate, "read_run", lambda folder: RunRecords({}, {}, (), (), {}, 0.0))
    with pytest.raises(RunFolderError, match="not enough for a calibration"):
        call(capsys, "calibrate", str(tmp_path))
