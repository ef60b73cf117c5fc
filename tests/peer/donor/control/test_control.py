from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from peer.donor.control.control import Control, seconds_of
from rollcast.runtime.errors import DaemonAway, RunFolderError
from rollcast.wire.donor_socket import REQUEST_BYTES_MAX, request, socket_path
from rollcast.wire.joining.error_json import error_from_json


def fail(_: dict[str, Any]) -> dict[str, Any]:
    raise RunFolderError("cannot write", cause="disk full", fix="free some space")


COMMANDS = {"status": lambda values: {"state": "on", "for_s": seconds_of(values)}, "fail": fail}


async def test_commands_are_answered_over_a_socket_for_its_owner_only(tmp_path: Path) -> None:
    async with Control(COMMANDS).serving(tmp_path):
        assert stat.S_IMODE(socket_path(tmp_path).stat().st_mode) == 0o600
        reply = await asyncio.to_thread(request, tmp_path, {"do": "status", "for_s": 60})
        assert reply == {"state": "on", "for_s": 60.0}
    with pytest.raises(DaemonAway):
        request(tmp_path, {"do": "status"})


async def test_a_socket_left_behind_is_no_hindrance(tmp_path: Path) -> None:
    socket_path(tmp_path).touch()
    async with Control(COMMANDS).serving(tmp_path):
        assert (await asyncio.to_thread(request, tmp_path, {"do": "status"}))["state"] == "on"


async def test_a_line_without_end_is_cut_off(tmp_path: Path) -> None:
    async with Control(COMMANDS).serving(tmp_path):
        reader, writer = await asyncio.open_unix_connection(str(socket_path(tmp_path)))
        writer.write(b"x" * (REQUEST_BYTES_MAX + 100))
        async with asyncio.timeout(5.0):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"nonsense\n", "not a message"),
        (b'{"do": "explode"}\n', "knows no command 'explode'"),
        (b'{"do": "status", "for_s": -1}\n', "must be seconds"),
        (b'{"do": "status", "for_s": true}\n', "must be seconds"),
        (b'{"do": "status", "for_s": 1e99}\n', "must be seconds"),
    ],
)
def test_what_is_no_command_is_said(line: bytes, what: str) -> None:
    error = error_from_json(Control(COMMANDS).answer(line)["error"])
    assert error is not None
    assert error.code == "RC305"
    assert what in error.what


def test_an_error_of_ours_reaches_the_owner() -> None:
    line = json.dumps({"do": "fail"}).encode()
    error = error_from_json(Control(COMMANDS).answer(line)["error"])
    assert error is not None
    assert (error.code, error.what, error.cause, error.fix) == ("RC104", "cannot write", "disk full", "free some space")
