from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from rollcast.cli.peer import identity
from rollcast.runtime.errors import ConfigError, WrongKey


def test_an_identity_is_backed_up_and_restored_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, copy = tmp_path / "first", tmp_path / "second", tmp_path / "copy.key"
    assert identity.show(state=first, json_output=True) == 0
    peer_id = json.loads(capsys.readouterr().out)["peer_id"]
    assert identity.backup(copy, state=first) == 0
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert identity.restore(copy, state=second) == 0
    assert f"The identity of this machine is {peer_id} now" in capsys.readouterr().out
    assert (second / "identity.key").read_bytes() == copy.read_bytes()


def test_no_key_is_overwritten(tmp_path: Path) -> None:
    identity.show(state=tmp_path)
    copy = tmp_path / "copy.key"
    identity.backup(copy, state=tmp_path)
    with pytest.raises(ConfigError, match="already exists"):
        identity.backup(copy, state=tmp_path)
    with pytest.raises(ConfigError, match="already exists"):
        identity.restore(copy, state=tmp_path)


def test_what_is_no_key_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "no.key").write_text("hello")
    with pytest.raises(WrongKey):
        identity.restore(tmp_path / "no.key", state=tmp_path / "state")
