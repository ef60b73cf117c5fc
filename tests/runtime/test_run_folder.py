from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder, no_run, run_folder_error, write_atomically, write_json


def test_prepare_makes_private_secrets(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").prepare()
    assert stat.S_IMODE(folder.secrets.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.root.iterdir()) == [
        "checkpoints",
        "config",
        "logs",
        "secrets",
        "versions",
    ]


def test_prepare_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(RunFolderError, match="cannot use the folder"):
        RunFolder(tmp_path / "run").prepare()


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "writable"), (errno.EIO, "another")]
)
def test_errors_say_what_to_do(number: int, advice: str) -> None:
    assert advice in str(run_folder_error(Path("runs"), OSError(number, os.strerror(number))))


def test_no_run_says_what_is_missing_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert no_run(tmp_path, "store.sqlite").cause == "it has no store.sqlite"
    assert no_run(tmp_path / "gone", "store.sqlite").cause == "there is no such folder"
    assert no_run(Path("runs/latest"), "store.sqlite").cause == f"there is no such folder in {tmp_path}"


def test_write_atomically_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "value.json"
    write_atomically(target, b"old", mode=0o600)
    write_json(target, {"a": 1})
    assert target.read_text() == '{\n  "a": 1\n}\n'
    assert os.listdir(tmp_path) == ["value.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "value"
    write_atomically(target, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["value"]
