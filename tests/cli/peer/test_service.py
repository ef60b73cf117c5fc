from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from peer.donor.install import manager
from peer.donor.install.manager import CommandResult
from rollcast.cli.peer.service import install, remove, show
from rollcast.runtime.errors import ConfigError, ServiceManager


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A home of its own, and a systemd that records its commands, which are returned."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    told: list[str] = []

    def run(command: Sequence[str]) -> CommandResult:
        told.append(" ".join(command))
        return CommandResult(0, "")

    monkeypatch.setattr(manager.Manager.__init__, "__defaults__", (run,))
    monkeypatch.setattr(manager.installed, "__defaults__", (run,))
    return told


def configured(tmp_path: Path) -> Path:
    path = tmp_path / "config" / "rollcast" / "peer.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f'state_folder = "{tmp_path}/elsewhere"\n')
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="systemd")
def test_a_unit_is_installed_and_removed(
    tmp_path: Path, machine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path)
    assert install(json_output=True) == 0
    answer = json.loads(capsys.readouterr().out)
    unit = Path(answer["unit"])
    assert (answer["kind"], answer["config"]) == ("user", str(path))
    text = unit.read_text()
    assert f"ReadWritePaths={tmp_path}/elsewhere" in text
    assert f"peer run {path}" in text
    assert machine[-1].startswith("systemctl --user restart")
    assert remove(json_output=True) == 0
    assert json.loads(capsys.readouterr().out)["removed"]
    assert not unit.exists()
    assert remove() == 0
    assert "There is no service to remove" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "word"), [("user", "PrivateUsers"), ("system", "DynamicUser"), ("launchd", "<plist")])
def test_a_unit_is_shown_and_nothing_is_installed(
    kind: str, word: str, tmp_path: Path, machine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(kind, memory_max="3G") == 0  # type: ignore[arg-type]
    text = capsys.readouterr().out
    assert word in text
    assert ("MemoryMax=3G" in text) == (kind != "launchd")
    show(kind, json_output=True)  # type: ignore[arg-type]
    assert json.loads(capsys.readouterr().out)["kind"] == kind
    assert not (tmp_path / "config" / "systemd").exists()


def test_without_a_configuration_or_a_manager_nothing_is_installed(
    tmp_path: Path, machine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="peer join"):
        install()
    configured(tmp_path)
    monkeypatch.setattr(manager.Manager, "is_there", lambda self: False)
    with pytest.raises(ServiceManager, match="service manager cannot be reached"):
        install()
