"""Lead to this installation: the processes that we start to its packages, and a person to the command for an extra."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rollcast.runtime.errors import ShadowedPackage

_DISTRIBUTION = "rollcast"
_ROOT = Path(__file__).resolve().parents[2]  # of a clone: the folder of pyproject.toml
_PACKAGES = ("capacity", "coordinator", "learner", "peer")  # beside rollcast, at the top level of site-packages


def check_packages() -> None:
    """Check that the names of Rollcast's packages lead to Rollcast; nothing is imported.

    Raises:
        ShadowedPackage: another package has one of the names.
    """
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None and Path(found.origin).resolve().parents[1] != _ROOT:
            raise ShadowedPackage(
                f"the package {name} is not Rollcast's: {found.origin}",
                cause=f"Rollcast is in {_ROOT}, and Python finds another package of that name first",
                fix="install Rollcast into a virtual environment of its own, or start it in another folder",
            )


def module_command(module: str) -> list[str]:
    """Return the command that runs one of our modules with this interpreter.

    Without -P, Python looks for packages in the working directory first: the folder of another checkout would replace
    ours.
    """
    return [sys.executable, "-P", "-m", module]


def lead_children_here(
    environment: MutableMapping[str, str] = os.environ,
    search_path: Sequence[str] = sys.path,
    *,
    is_safe_path: bool = sys.flags.safe_path,
) -> None:
    """Let the processes that we start find these packages too if only the working directory led to them.

    That is so for `python -m rollcast.cli.main` in a clone. Module commands ignore the working directory, and would
    find another installation or none.
    """
    if is_safe_path or not search_path or Path(search_path[0]).resolve() != _ROOT:
        return
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), environment.get("PYTHONPATH"))))


def install_command(*extras: str) -> str:
    """Return the command that adds extras to this interpreter's Rollcast.

    Rollcast is no package of a public index, so its name alone is right only where it came from an index: a clone is
    installed from its folder, a release's wheel from its path or URL (PEP 610 records which).
    """
    return f"{_installer()} {_requirement(extras, _origin())}"


def install_command_from(url: str, *extras: str) -> str:
    """Return the command that installs the wheel at a URL, with extras, into this interpreter's environment."""
    return f"{_installer()} {_requirement(extras, {'url': url})}"


def installed_sha256() -> str:
    """Return the digest of the wheel that this installation came from; empty if it did not come from a wheel."""
    archive = (_origin() or {}).get("archive_info", {})
    return str(archive.get("hashes", {}).get("sha256", ""))


def _origin() -> Mapping[str, Any] | None:
    """Return what pip recorded of the place that Rollcast came from; None if that was an index."""
    from importlib import metadata  # 15 ms, and every command imports this module

    try:
        recorded = metadata.distribution(_DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        recorded = None
    if recorded is not None:
        found: Mapping[str, Any] = json.loads(recorded)
        return found
    if (_ROOT / "pyproject.toml").exists():  # run from a clone that is not installed
        return {"url": _ROOT.as_uri(), "dir_info": {"editable": True}}
    return None


def _requirement(extras: tuple[str, ...], origin: Mapping[str, Any] | None) -> str:
    wanted = f"[{','.join(extras)}]" if extras else ""
    if origin is None:
        return shlex.quote(_DISTRIBUTION + wanted)
    url = str(origin["url"])
    if "dir_info" in origin:
        folder = shlex.quote(unquote(urlsplit(url).path) + wanted)
        return f"--editable {folder}" if origin["dir_info"].get("editable") else folder
    return shlex.quote(f"{_DISTRIBUTION}{wanted} @ {url}")


def _installer() -> str:
    """Return the start of the command: pip of this interpreter, or uv where the environment has no pip."""
    found = shutil.which("python")
    mine = found is not None and Path(found).absolute() == Path(sys.executable).absolute()
    python = "python" if mine else shlex.quote(sys.executable)
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"
