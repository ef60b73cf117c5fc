"""Test the text of units with a small parser, and with systemd's own where it is installed."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.donor.install.units import UNIT_NAME, Kind, Service, quoted, unit_of

DEPLOY = Path(__file__).parents[4] / "deploy" / "systemd"
COMMAND = ["/opt/rollcast/bin/python", "-P", "-m", "rollcast.cli.main", "peer", "run", "/etc/rollcast/peer.toml"]
USER_COMMAND = ["/usr/bin/env", "rollcast", "peer", "run", "/home/me/.config/rollcast/peer.toml"]
STATE = "/var/lib/rollcast"
PROMISED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectControlGroups": "yes",
    "RestrictSUIDSGID": "yes",
    "RestrictNamespaces": "yes",
    "LockPersonality": "yes",
    "CapabilityBoundingSet": "",
    "SystemCallFilter": "@system-service",
    "MemoryMax": "80%",
    "PrivateTmp": "yes",
    "UMask": "0077",
    "OOMScoreAdjust": "1000",
    "Nice": "19",
}


def parsed(text: str) -> dict[str, dict[str, list[str]]]:
    """Return a unit's sections: systemd.syntax(7) without continued lines, which units.py does not write."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in text.splitlines():
        assert not line.endswith("\\")
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return sections


def words(line: str) -> list[str]:
    """Return the words that systemd reads in a command line: quotes, escapes, %% and $$ (systemd.service(5))."""
    found, word, inside, index = [], "", False, 0
    begun = False
    while index < len(line):
        character = line[index]
        if character == "\\":
            index += 1
            word, begun = word + line[index], True
        elif character == '"':
            inside, begun = not inside, True
        elif character.isspace() and not inside:
            if begun:
                found.append(word)
            word, begun = "", False
        elif line[index : index + 2] in ("%%", "$$"):
            index += 1
            word, begun = word + character, True
        else:
            assert character not in "%$", "systemd would expand this"
            word, begun = word + character, True
        index += 1
    return found + [word] * begun


def service(command: list[str] = COMMAND) -> Service:
    return Service(command=command, state_folder=STATE, home_hidden=True)


@pytest.mark.parametrize("kind", ["user", "system"])
def test_a_unit_has_the_documented_options(kind: Kind) -> None:
    unit = parsed(unit_of(service(), kind))
    section = unit["Service"]
    assert {key: section[key][0] for key in PROMISED} == PROMISED
    assert words(section["ExecStart"][0]) == COMMAND
    assert section["Restart"] == ["on-failure"]
    assert "MemoryDenyWriteExecute" not in section
    assert all(len(values) == 1 for key, values in section.items() if key != "DeviceAllow")


def test_a_system_unit_has_a_user_of_its_own_and_reaches_no_metadata_service() -> None:
    unit = parsed(unit_of(service(), "system"))
    assert unit["Service"]["DynamicUser"] == ["yes"]
    assert unit["Service"]["StateDirectory"] == ["rollcast"]
    assert "169.254.169.254/32" in unit["Service"]["IPAddressDeny"][0]
    assert unit["Service"]["ProtectHome"] == ["yes"]
    assert unit["Service"]["DevicePolicy"] == ["closed"]
    assert unit["Install"]["WantedBy"] == ["multi-user.target"]


def test_a_users_unit_writes_to_its_state_alone() -> None:
    unit = parsed(unit_of(Service(command=COMMAND, state_folder="/home/a b/$x/100%"), "user"))
    assert unit["Service"]["ReadWritePaths"] == ['"/home/a b/$x/100%%" -%t']
    assert unit["Service"]["PrivateUsers"] == ["yes"]
    assert unit["Install"]["WantedBy"] == ["default.target"]


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=0, max_size=40))
def test_systemd_reads_a_word_as_it_was_quoted(word: str) -> None:
    assert words(quoted(word)) == [word]
    assert words(f"a {quoted(word)} b") == ["a", word, "b"]


@pytest.mark.parametrize("word", ["a\nb", "a\rb", "a\0b"])
def test_no_line_can_be_smuggled_in(word: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        unit_of(service([*COMMAND, word]), "user")


def test_a_property_list_can_be_read_back() -> None:
    values = plistlib.loads(unit_of(service(), "launchd").encode())
    assert values["ProgramArguments"] == COMMAND
    assert values["KeepAlive"] == {"SuccessfulExit": False}
    assert values["Umask"] == 0o077
    assert values["ProcessType"] == "Background"


@pytest.mark.parametrize(("kind", "command"), [("user", USER_COMMAND), ("system", COMMAND)])
def test_the_shipped_units_are_the_generated_ones(kind: Kind, command: list[str]) -> None:
    state = STATE if kind == "system" else "/home/me/.local/state/rollcast/peer"
    text = unit_of(Service(command=command, state_folder=state, home_hidden=True), kind)
    assert (DEPLOY / kind / UNIT_NAME).read_text() == text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("kind", ["user", "system"])
def test_systemd_finds_nothing_wrong(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / UNIT_NAME
    command = [shutil.which("env") or "/usr/bin/env", "a b", "100%", "$HOME"]
    path.write_text(unit_of(Service(command=command, state_folder="/var/lib/a b", home_hidden=True), kind))
    flags = ["--user"] if kind == "user" else []
    done = subprocess.run(
        ["systemd-analyze", *flags, "verify", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stopped_peer_has_its_drain_time() -> None:
    service = Service(command=["rollcast"], state_folder="/state", drain_s=600.5)
    assert "TimeoutStopSec=611\n" in unit_of(service, "user")
    assert "TimeoutStopSec=10\n" in unit_of(replace(service, drain_s=0.0), "system")
