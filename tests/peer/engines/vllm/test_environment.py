"""Test how vLLM's environment is found, and what its processes may import and see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peer.config import PeerConfig
from peer.engines.vllm.environment import Workspace, find_vllm
from peer.startup import make_engine
from rollcast.runtime.errors import MissingExtra


def environment_with(release: str, folder: Path) -> Path:
    """Return an interpreter for which a package vllm of this release is installed."""
    (folder / "site" / "vllm").mkdir(parents=True)
    (folder / "site" / "vllm" / "__init__.py").write_text("raise SystemExit('vllm must not be imported')\n")
    (folder / "site" / "vllm" / "_version.py").write_text(f"version: str\n__version__ = version = '{release}'\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder / "site"}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def test_vllm_is_found_without_importing_it(tmp_path: Path) -> None:
    python = environment_with("0.32.0", tmp_path)
    assert find_vllm(python).release == "0.32.0"
    engine = make_engine(PeerConfig(engine={"python": python}, state_folder=tmp_path / "state"))
    assert engine.hardware == "vllm 0.32.0"


@pytest.mark.parametrize("release", ["0.31.9", "0.320.0", "1.0"])
def test_another_release_is_refused(release: str, tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=f"vLLM {release}") as refused:
        find_vllm(environment_with(release, tmp_path))
    assert "engine.python" in refused.value.fix


def test_an_interpreter_without_vllm_and_one_that_does_not_exist_are_refused_with_the_fix() -> None:
    with pytest.raises(MissingExtra, match="vLLM is not installed") as refused:
        make_engine(PeerConfig(engine={"kind": "vllm"}))
    assert "pip install" in refused.value.fix
    with pytest.raises(MissingExtra, match="cannot be run"):
        find_vllm(Path("/nowhere/python"))


def test_processes_that_run_elsewhere_find_this_program_below_a_relative_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(Path("peer-state"))
    imports = Path(workspace.environment({})["PYTHONPATH"])
    assert imports.is_relative_to(tmp_path)
    assert (imports / "peer" / "engines" / "vllm" / "server" / "main.py").is_file()
    workspace.close()


def test_processes_see_no_secrets_and_import_nothing_but_this_program(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    inherited = {
        "PATH": "/bin",
        "VLLM_API_KEY": "s",
        "HF_TOKEN": "s",
        "CUDA_VISIBLE_DEVICES": "1",
        "ROLLCAST_INVITE": "s",
    }
    found = workspace.environment(inherited)
    assert {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}.items() <= found.items()
    assert "s" not in found.values()
    code = (
        "import sys, peer.engines.vllm.server.main, rollcast.policy.noise\n"
        "sys.exit(str([name for name in ('pydantic', 'msgspec', 'psutil') if name in sys.modules]))\n"
    )
    ended = subprocess.run([sys.executable, "-S", "-c", "import peer, rollcast"], env=found, check=False)
    assert ended.returncode == 0
    done = subprocess.run([sys.executable, "-c", code], env=found, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
    workspace.close()


def test_the_folders_of_killed_engines_are_removed_and_those_of_others_are_not(tmp_path: Path) -> None:
    living = Workspace(tmp_path)
    dead = tmp_path / "vllm-dead"
    dead.mkdir()
    (dead / "lock").touch()
    Workspace(tmp_path).close()
    assert list(tmp_path.iterdir()) == [living.folder]
    living.close()
