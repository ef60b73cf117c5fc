"""Test the commands of `rollcast peer`, and the folders and the identity that they work on."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from rollcast.cli.main import app
from rollcast.cli.peer import identity
from rollcast.cli.peer.folders import config_file, state_folder
from rollcast.runtime.errors import ConfigError, WrongKey


def test_identity_is_backed_up_and_restored_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, copy = tmp_path / "first", tmp_path / "second", tmp_path / "copy.key"
    assert identity.show(state=first, json_output=True) == 0
    peer_id = json.loads(capsys.readouterr().out)["peer_id"]
    assert identity.backup(copy, state=first) == 0
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert identity.restore(copy, state=second) == 0
    assert f"This machine now has the identity {peer_id}" in capsys.readouterr().out
    assert (second / "identity.key").read_bytes() == copy.read_bytes()


def test_no_key_is_overwritten(tmp_path: Path) -> None:
    identity.show(state=tmp_path)
    copy = tmp_path / "copy.key"
    identity.backup(copy, state=tmp_path)
    with pytest.raises(ConfigError, match="already exists"):
        identity.backup(copy, state=tmp_path)
    with pytest.raises(ConfigError, match="already exists"):
        identity.restore(copy, state=tmp_path)


def test_malformed_key_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "no.key").write_text("hello")
    with pytest.raises(WrongKey):
        identity.restore(tmp_path / "no.key", state=tmp_path / "state")


def test_they_follow_the_users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert (config_file(), state_folder()) == (Path("/c/rollcast/peer.toml"), Path("/s/rollcast/peer"))


def test_without_xdg_variables_folders_are_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jan")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert config_file() == Path("/home/jan/.config/rollcast/peer.toml")
    assert state_folder() == Path("/home/jan/.local/state/rollcast/peer")


def test_all_commands_of_an_owner_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["peer", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(command in said for command in ("run", "status", "pause", "resume", "finish", "id"))
