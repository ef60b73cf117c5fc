from __future__ import annotations

import shlex
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from rollcast.runtime import install
from rollcast.runtime.errors import ShadowedPackage
from rollcast.runtime.install import check_packages, install_command


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
