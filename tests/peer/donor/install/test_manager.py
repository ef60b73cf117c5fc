"""Test the commands that managers are given: a test machine has neither systemd nor launchd."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from peer.donor.install.manager import CommandResult, Manager, installed, run
from peer.donor.install.units import UNIT_NAME, Kind, Service
from rollcast.runtime.errors import ConfigError, ServiceManager

SERVICE = Service(command=["/bin/true"], state_folder="/state")


class CommandRecorder:
    """Records the commands that it is given; those that contain ``fails`` fail."""

    def __init__(self, fails: str = "") -> None:
        self.commands: list[str] = []
        self.fails = fails

    def __call__(self, command: Sequence[str]) -> CommandResult:
        self.commands.append(" ".join(command))
        return CommandResult(1, "no such bus") if self.fails and self.fails in command else CommandResult(0, "")


def test_a_users_unit_is_written_enabled_and_started(tmp_path: Path) -> None:
    told = CommandRecorder()
    manager = Manager("user", tmp_path, told)
    assert installed(tmp_path, told) is None
    manager.install(SERVICE)
    assert (tmp_path / "systemd" / "user" / UNIT_NAME).read_text().startswith("[Unit]")
    assert told.commands == [
        "systemctl --user daemon-reload",
        f"systemctl --user enable {UNIT_NAME}",
        f"systemctl --user restart {UNIT_NAME}",
    ]
    found = installed(tmp_path, told)
    assert found is not None
    assert found.kind == "user"


def test_it_is_removed_without_a_trace(tmp_path: Path) -> None:
    told = CommandRecorder()
    manager = Manager("user", tmp_path, told)
    assert not manager.remove()
    manager.write(SERVICE)
    assert manager.remove()
    assert not manager.unit_file.exists()
    assert told.commands[-2:] == [
        f"systemctl --user disable --now {UNIT_NAME}",
        "systemctl --user daemon-reload",
    ]


def test_a_unit_is_removed_although_its_manager_is_missing(tmp_path: Path) -> None:
    manager = Manager("user", tmp_path, CommandRecorder("show-environment"))
    manager.write(SERVICE)
    assert manager.remove()
    assert not manager.unit_file.exists()


def test_the_managers_error_is_passed_on(tmp_path: Path) -> None:
    manager = Manager("user", tmp_path, CommandRecorder("enable"))
    with pytest.raises(ServiceManager, match="enable") as raised:
        manager.install(SERVICE)
    assert raised.value.cause == "no such bus"
    assert not Manager("user", tmp_path, CommandRecorder("show-environment")).is_there()
    assert not Manager("user", tmp_path, CommandRecorder("is-active")).is_active()
    with pytest.raises(ServiceManager):
        Manager("user", tmp_path, CommandRecorder("stop")).stop()


def test_a_path_that_a_unit_cannot_hold_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="service"):
        Manager("user", tmp_path, CommandRecorder()).write(
            Service(command=["/bin/true", "a\nb"], state_folder="/state")
        )


def test_launchd_takes_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    told = CommandRecorder()
    manager = Manager("launchd", tmp_path, told)
    manager.install(SERVICE)
    assert manager.unit_file == tmp_path / "Library" / "LaunchAgents" / "org.rollcast.peer.plist"
    assert [command.split()[1] for command in told.commands] == ["bootout", "bootstrap"]
    assert manager.is_active()
    assert manager.remove()


@pytest.mark.parametrize(("kind", "where"), [("system", "/etc/systemd/system"), ("user", "systemd/user")])
def test_units_are_where_managers_look(kind: Kind, where: str, tmp_path: Path) -> None:
    assert where in str(Manager(kind, tmp_path).unit_file)


def test_a_missing_command_has_a_status() -> None:
    assert run(["/bin/sh", "-c", "echo no >&2; exit 3"]) == CommandResult(3, "no")
    assert run(["/no/such/command"]).status == 127
