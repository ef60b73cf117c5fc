from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from rollcast.runtime import install
from rollcast.runtime.errors import ShadowedPackage
from rollcast.runtime.install import check_packages, install_command, lead_children_here, module_command


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "'rollcast[lan,p2p]'"),
        (
            {"url": "file:///home/a%20b/rollcast", "dir_info": {"editable": True}},
            "--editable '/home/a b/rollcast[lan,p2p]'",
        ),
        ({"url": "file:///src/rollcast", "dir_info": {}}, "'/src/rollcast[lan,p2p]'"),
        (
            {"url": "https://example.org/rollcast-0.1.0-py3-none-any.whl", "archive_info": {}},
            "'rollcast[lan,p2p] @ https://example.org/rollcast-0.1.0-py3-none-any.whl'",
        ),
    ],
)
def test_an_extra_comes_from_where_rollcast_came_from(
    origin: dict[str, Any] | None, requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "_origin", lambda: origin)
    assert install_command("lan", "p2p").endswith(f" -m pip install {requirement}")


def test_a_clone_that_is_not_installed_names_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    root = Path(install.__file__).resolve().parents[2]
    assert install_command("p2p").endswith(f"--editable {shlex.quote(f'{root}[p2p]')}")


def test_the_interpreter_is_named_unless_python_on_the_path_is_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.shutil, "which", lambda _: None)
    assert install_command("p2p").startswith(f"{sys.executable} -m pip install ")
    monkeypatch.setattr(install.shutil, "which", lambda _: sys.executable)
    assert install_command("p2p").startswith("python -m pip install ")


def test_an_environment_without_pip_uses_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda _: None)
    assert install_command("p2p").startswith("uv pip install --python ")


def test_a_strangers_package_of_one_of_our_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages()
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "__init__.py").touch()
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)]))
    with pytest.raises(ShadowedPackage, match="package peer is not Rollcast's"):
        check_packages()


def test_a_process_of_ours_ignores_another_checkout_in_the_working_directory(tmp_path: Path) -> None:
    for package in (*install._PACKAGES, "rollcast"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('code of another checkout')")
    command = [*module_command("rollcast.cli.main"), "--version"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_no_process_is_started_with_packages_of_the_working_directory() -> None:
    for package in (*install._PACKAGES, "rollcast"):
        for path in (install._ROOT / package).rglob("*.py"):
            text = path.read_text()
            assert text.count('"-m"') == len(re.findall(r'"-P",\s*"-m"', text)), path


def test_only_a_parent_that_the_working_directory_led_here_leads_its_children() -> None:
    root = str(install._ROOT)
    environment: dict[str, str] = {}
    lead_children_here(environment, ["/usr/bin", root], is_safe_path=False)
    lead_children_here(environment, [root], is_safe_path=True)
    assert environment == {}
    lead_children_here(environment, [root, "/usr/lib/python3"], is_safe_path=False)
    assert environment == {"PYTHONPATH": root}
    environment = {"PYTHONPATH": "/else"}
    lead_children_here(environment, [root], is_safe_path=False)
    assert environment == {"PYTHONPATH": f"{root}{os.pathsep}/else"}
