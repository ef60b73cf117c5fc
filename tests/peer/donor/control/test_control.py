"""Test the owner's commands to a running peer: replies, the limits that they set, and what is saved of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from peer.config import PeerConfig
from peer.donor.control.commands import LimitsCommand
from peer.donor.control.control import Control, seconds_of
from peer.donor.control.limits import FILE, OwnerLimits, OwnerLimitsBook
from peer.donor.control.saved_state import FILE as STATE_FILE
from peer.donor.control.saved_state import SavedState
from peer.limits.config import LimitsConfig
from peer.limits.decide import OwnerRequest
from peer.limits.quota import MonthUse
from rollcast.runtime.errors import ConfigError, DaemonAway, MalformedMessage, RunFolderError
from rollcast.wire.donor.control_socket import REQUEST_BYTES_MAX, request, socket_path
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


async def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    socket_path(tmp_path).touch()
    async with Control(COMMANDS).serving(tmp_path):
        assert (await asyncio.to_thread(request, tmp_path, {"do": "status"}))["state"] == "on"


async def test_an_endless_line_is_cut_off(tmp_path: Path) -> None:
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
def test_an_unknown_command_is_an_error(line: bytes, what: str) -> None:
    error = error_from_json(Control(COMMANDS).answer(line)["error"])
    assert error is not None
    assert error.code == "RC305"
    assert what in error.what


def test_an_internal_error_reaches_the_owner() -> None:
    line = json.dumps({"do": "fail"}).encode()
    error = error_from_json(Control(COMMANDS).answer(line)["error"])
    assert error is not None
    assert (error.code, error.what, error.cause, error.fix) == ("RC104", "cannot write", "disk full", "free some space")


class World:
    def __init__(self, folder: Path) -> None:
        self.book = OwnerLimitsBook(PeerConfig(state_folder=folder))
        self.taken_up = 0
        self.command = LimitsCommand(self.book, self._changed)

    def _changed(self) -> None:
        self.taken_up += 1


def test_limits_are_shown_set_and_reset(tmp_path: Path) -> None:
    world = World(tmp_path)
    shown = world.command({"do": "limits"})
    assert (shown["limits"]["upload_mbit_s_max"], shown["changed"], shown["at_restart"]) == (None, [], [])
    assert world.taken_up == 0
    reply = world.command({"do": "limits", "set": {"upload_mbit_s_max": 3, "vram_share_max": 0.5}})
    assert reply["limits"]["upload_mbit_s_max"] == 3.0
    assert (reply["changed"], reply["at_restart"]) == (["upload_mbit_s_max", "vram_share_max"], ["vram_share_max"])
    assert world.command({"do": "limits", "reset": ["vram_share_max"]})["at_restart"] == []
    assert world.command({"do": "limits", "reset": True})["changed"] == []
    assert world.taken_up == 3


@pytest.mark.parametrize("values", [{"set": 3}, {"reset": "all"}, {"set": {}, "reset": []}, {"reset": False}])
def test_a_malformed_request_is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    world = World(tmp_path)
    with pytest.raises(MalformedMessage):
        world.command({"do": "limits", **values})
    with pytest.raises(ConfigError):
        world.command({"do": "limits", "set": {"quota_reset_day": 40}})
    assert world.taken_up == 0


def configured(folder: Path) -> PeerConfig:
    return PeerConfig.model_validate(
        {"state_folder": folder, "link": {"upload_mbit_s_max": 5.0}, "limits": {"gpu_celsius_max": 80.0}}
    )


def test_without_changes_the_configuration_applies(tmp_path: Path) -> None:
    config = configured(tmp_path)
    book = OwnerLimitsBook(config)
    assert (book.limits.upload_mbit_s_max, book.limits.gpu_celsius_max, book.changed) == (5.0, 80.0, [])
    assert book.config == config
    assert OwnerLimits.model_fields.keys() > LimitsConfig.model_fields.keys()


def test_changes_survive_a_restart_and_may_remove_a_limit(tmp_path: Path) -> None:
    book = OwnerLimitsBook(configured(tmp_path))
    book.change({"upload_mbit_s_max": 2, "compute_hours": ["mon-fri 22:00-07:00"]})
    book.change({"gpu_celsius_max": None, "network_hours": None})
    book.reset(["network_hours"])
    assert stat.S_ISREG((tmp_path / FILE).stat().st_mode)
    again = OwnerLimitsBook(configured(tmp_path))
    assert again.limits == book.limits
    assert again.changed == ["compute_hours", "gpu_celsius_max", "upload_mbit_s_max"]
    config = again.config
    assert (config.link.upload_mbit_s_max, config.limits.gpu_celsius_max) == (2.0, None)
    assert config.limits.compute_hours == ("mon-fri 22:00-07:00",)
    again.reset(["gpu_celsius_max"])
    assert OwnerLimitsBook(configured(tmp_path)).limits.gpu_celsius_max == 80.0
    again.reset()
    assert OwnerLimitsBook(configured(tmp_path)).changed == []


@pytest.mark.parametrize(
    "values",
    [{"upload_mbit_s_max": -1}, {"speed": 1}, {"compute_hours": ["someday"]}, {"vram_share_max": "much"}],
)
def test_an_unknown_limit_changes_nothing(tmp_path: Path, values: dict[str, object]) -> None:
    book = OwnerLimitsBook(configured(tmp_path))
    before = book.limits
    with pytest.raises(ConfigError, match=r"problem|no limit"):
        book.change({"download_mbit_s_max": 1, **values})
    assert (book.limits, book.changed) == (before, [])
    with pytest.raises(ConfigError, match="no limit 'speed'"):
        book.reset(["speed"])
    with pytest.raises(ConfigError) as caught:
        book.change({"upload": 5})
    assert caught.value.fix.startswith("did you mean upload_gb_month or upload_mbit_s_max? ")


@pytest.mark.parametrize("text", ["nonsense", "[1]", '{"upload_mbit_s_max": -1}', '{"speed": 1}'])
def test_a_damaged_file_of_limits_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError):
        OwnerLimitsBook(configured(tmp_path))


def test_request_and_traffic_survive_a_restart(tmp_path: Path) -> None:
    asked = OwnerRequest("pause", datetime(2026, 11, 23, 12))
    use = MonthUse("2026-11", 5, 7, (MonthUse("2036-02", 1, 2),))
    SavedState(tmp_path).save(asked, use)
    again = SavedState(tmp_path)
    assert (again.asked, again.use) == (asked, use)


def test_a_new_machine_has_no_saved_state(tmp_path: Path) -> None:
    assert SavedState(tmp_path).asked == OwnerRequest()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"wish": "explode", "until": null, "month": "", "sent_bytes": 0, "received_bytes": 0}'],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    memory = SavedState(tmp_path)
    assert (memory.asked, memory.use) == (OwnerRequest(), MonthUse())


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    memory = SavedState(tmp_path / "gone")
    with pytest.raises(RunFolderError):
        memory.save(OwnerRequest("pause"), MonthUse())
