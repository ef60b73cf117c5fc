from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.cli.peer.folders import config_file, state_folder


def test_they_follow_the_users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert (config_file(), state_folder()) == (Path("/c/rollcast/peer.toml"), Path("/s/rollcast/peer"))


def test_without_it_they_are_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jan")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert config_file() == Path("/home/jan/.config/rollcast/peer.toml")
    assert state_folder() == Path("/home/jan/.local/state/rollcast/peer")
