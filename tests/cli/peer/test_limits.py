"""Limits on the files; on a running peer they are tested with `rollcast peer join`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.cli.peer.limits import reset, set_, show
from rollcast.runtime.errors import ConfigError


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    config = tmp_path / "peer.toml"
    config.write_text(
        f'state_folder = "{tmp_path}/state"\n[limits]\nupload_gb_month = 5\n[link]\nupload_mbit_s_max = 20\n'
    )
    return {"config": config}


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return dict(json.loads(capsys.readouterr().out))


def test_all_limits_are_shown_with_their_meaning(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert show(**places) == 0
    shown = capsys.readouterr().out
    assert "upload_gb_month" in shown
    assert "Monthly upload quota" in shown
    assert "upload_mbit_s_max" in shown
    assert "compute_hours" in shown
    assert "none" in shown


def test_a_limit_is_set_kept_and_taken_away(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = places["config"].read_text()
    set_("limits.download_gb_month=7", "link.upload_mbit_s_max=none", **places)
    assert "download_gb_month" in capsys.readouterr().out
    show(**places, json_output=True)
    found = told(capsys)
    assert found["changed"] == ["download_gb_month", "upload_mbit_s_max"]
    limits = found["limits"]
    assert isinstance(limits, dict)
    assert (limits["download_gb_month"], limits["upload_mbit_s_max"], limits["upload_gb_month"]) == (7.0, None, 5.0)
    reset("download_gb_month", **places, json_output=True)
    assert told(capsys)["changed"] == ["upload_mbit_s_max"]
    reset(**places, json_output=True)
    assert told(capsys)["changed"] == []
    assert places["config"].read_text() == text  # its owner's file is never touched


@pytest.mark.parametrize("assignment", ["nonsense=1", "upload_gb_month=-1", 'compute_hours=["someday"]', "noequals"])
def test_what_is_no_limit_is_refused(assignment: str, places: dict[str, Path]) -> None:
    with pytest.raises(ConfigError):
        set_(assignment, **places)
    with pytest.raises(ConfigError):
        set_(**places)
