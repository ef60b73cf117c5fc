from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from rollcast.cli.start import doctor as doctor_module
from rollcast.cli.start.doctor import Role, doctor
from rollcast.cli.start.extras import required
from rollcast.runtime.errors import MissingExtra
from rollcast.sim import compiled


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the process that asks jax for its devices; the test may change what it answers."""
    answer: dict[str, Any] = {"code": 0, "out": '["0.10.2", "cpu", 1]\n', "err": ""}

    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, answer["code"], answer["out"], answer["err"])

    monkeypatch.setattr(doctor_module.subprocess, "run", run)
    return answer


def found(capsys: pytest.CaptureFixture[str], *roles: Role) -> tuple[int, dict[str, dict[str, str]]]:
    status = doctor(*roles, json_output=True)
    return status, {one["topic"]: one for one in json.loads(capsys.readouterr().out)["findings"]}


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(doctor_module, "_is_installed", lambda name: name not in names)


def test_what_a_role_lacks_is_named_with_its_command(
    probe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "optax", "orbax-checkpoint", "libp2p")
    status, findings = found(capsys)
    assert (status, findings["learner"]["level"]) == (0, "warning")
    assert findings["learner"]["text"] == "lacks optax, orbax-checkpoint"
    assert "[learner]" in findings["learner"]["fix"]
    assert findings["coordinator"]["level"] == "ok"
    assert findings["p2p"]["text"].startswith("lacks libp2p; only peers behind routers need it")
    status, findings = found(capsys, "learner")
    assert (status, findings["learner"]["level"]) == (MissingExtra.exit_code, "error")


def test_the_packages_of_an_extra_are_those_of_the_installation() -> None:
    assert {"jax", "optax", "orbax-checkpoint"} <= set(required("learner"))
    assert required("p2p") == ["libp2p"]


def test_jax_that_does_not_start_and_jax_that_misses_a_gpu(
    probe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(capsys)[1]["jax"]["text"] == "jax 0.10.2 computes on 1 cpu device"
    lost = doctor_module._jax(has_gpu=True, roles=("learner",))
    assert lost is not None
    assert "there is a GPU" in lost.text
    assert "[learner,cuda12]" in lost.fix
    probe |= {"code": 1, "err": "Traceback\nImportError: no libcudart\n"}
    status, findings = found(capsys, "peer")
    assert (status, findings["jax"]["level"]) == (MissingExtra.exit_code, "error")
    assert "no libcudart" in findings["jax"]["text"]


def test_a_taken_port_and_a_missing_compiler_are_warnings(
    probe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor_module.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor_module, "_PORTS", {port: "serve.grpc_port"})
        status, findings = found(capsys)
    assert status == 0
    assert findings["ports"]["text"] == f"port {port} is taken"
    assert findings["gcc"]["fix"].startswith("apt-get install gcc")


def test_compiled_cores_are_absent_of_other_sources_or_current(
    probe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    assert found(capsys)[1]["cores"]["text"].startswith("the cores are not compiled: ")
    manifest = {"suffix": EXTENSION_SUFFIXES[0], "sources": compiled.hashes()}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert "compiled from these sources" in found(capsys)[1]["cores"]["text"]
    manifest["sources"] = compiled.hashes() | {"coordinator/core/core.py": "0"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    changed = found(capsys)[1]["cores"]
    assert "coordinator/core/core.py has changed since; `make compiled`" in changed["text"]
    assert changed["level"] == "ok"


def test_people_read_lines(probe: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor() == 0
    assert "jax 0.10.2 computes on 1 cpu device" in capsys.readouterr().out
