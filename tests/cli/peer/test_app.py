from __future__ import annotations

import pytest

from rollcast.cli.main import app


def test_all_commands_of_an_owner_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["peer", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(command in said for command in ("run", "status", "pause", "resume", "finish", "id"))
