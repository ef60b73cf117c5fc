"""Test what a peer's state folder says about its last process."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.runtime.errors import DaemonAway
from rollcast.wire.donor.control_socket import request
from rollcast.wire.donor.process_end import FILE, last_end, remove_end, write_end


def test_the_owner_is_told_how_the_process_ended(tmp_path: Path) -> None:
    assert last_end(tmp_path) == ""
    write_end(tmp_path, "its owner asked it to finish\x1b[2J", unix_s=1.8e9)
    said = last_end(tmp_path)
    assert said.startswith("it ended at 2027-01-")
    assert said.endswith(": its owner asked it to finish [2J")
    with pytest.raises(DaemonAway, match="it ended at") as caught:
        request(tmp_path, {"do": "status"})
    assert "rollcast peer join" in str(caught.value)
    remove_end(tmp_path)
    remove_end(tmp_path)
    assert last_end(tmp_path) == ""


@pytest.mark.parametrize("damaged", ["", "[]", '{"unix_s": 1e400, "reason": ""}', '{"unix_s": "x"}'])
def test_a_damaged_file_says_nothing(tmp_path: Path, damaged: str) -> None:
    (tmp_path / FILE).write_text(damaged)
    assert last_end(tmp_path) == ""


def test_a_folder_that_is_gone_does_not_hide_how_the_process_ended(tmp_path: Path) -> None:
    write_end(tmp_path / "gone", "a full disk", unix_s=1.8e9)
    remove_end(tmp_path / "gone")
    assert last_end(tmp_path / "gone") == ""
