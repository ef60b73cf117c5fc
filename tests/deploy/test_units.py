"""Test the systemd units of the central roles."""

from __future__ import annotations

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from rollcast.runtime.errors import ConfigError, JoinRefused, TaskError

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("rollcast-*.service"))
ROLES = ("coordinator", "gateway", "learner", "origin")


def unit(role: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    (path,) = (path for path in UNITS if path.stem == f"rollcast-{role}")
    parser.read(path)
    return parser


@pytest.mark.parametrize("role", ROLES)
def test_units_are_hardened_and_restart_only_after_crashes(role: str) -> None:
    service = unit(role)["Service"]
    for key in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "ProtectKernelTunables", "LockPersonality"):
        assert service[key] == "yes", key
    assert service["ProtectSystem"] == "strict"
    assert service["Restart"] == "on-failure"
    hopeless = {ConfigError.exit_code, TaskError.exit_code, JoinRefused.exit_code}
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == hopeless
    assert service["StateDirectoryMode"] == "0700"


@pytest.mark.parametrize("role", ROLES)
def test_systemd_accepts_the_units(role: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("units were not verified: no systemd-analyze here")
    (path,) = (path for path in UNITS if path.stem == f"rollcast-{role}")
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/opt/rollcast/bin/rollcast", shutil.which("true") or "/bin/true"))
    ran = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60)
    assert path.name not in ran.stderr, ran.stderr
