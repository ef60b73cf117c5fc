from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from peer.instance import FILE, instance_id, this_place
from rollcast.runtime.errors import RunFolderError


def test_it_stays_the_same_in_its_place(tmp_path: Path) -> None:
    first = instance_id(tmp_path)
    assert len(first) == 32
    assert instance_id(tmp_path) == first
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert str(tmp_path) not in (tmp_path / FILE).read_text()


def test_a_copied_state_folder_is_another_instance(tmp_path: Path) -> None:
    here, copy = tmp_path / "here", tmp_path / "copy"
    first = instance_id(here)
    shutil.copytree(here, copy)
    second = instance_id(copy)
    assert second != first
    assert instance_id(copy) == second
    assert instance_id(here) == first
    assert instance_id(here, "another machine") != first


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"instance_id": 3, "place": 4}'])
def test_a_damaged_file_is_made_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    first = instance_id(tmp_path)
    assert instance_id(tmp_path) == first


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError):
        instance_id(tmp_path / "file")


def test_a_place_names_its_folder(tmp_path: Path) -> None:
    assert this_place(tmp_path) != this_place(tmp_path / "other")
