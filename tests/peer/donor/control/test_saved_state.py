from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from peer.donor.control.saved_state import FILE, SavedState
from peer.limits.decide import OwnerRequest
from peer.limits.quota import MonthUse
from rollcast.runtime.errors import RunFolderError


def test_what_was_asked_for_and_moved_is_there_after_a_restart(tmp_path: Path) -> None:
    asked, use = OwnerRequest("pause", datetime(2026, 11, 23, 12)), MonthUse("2026-11", 5, 7)
    SavedState(tmp_path).save(asked, use)
    again = SavedState(tmp_path)
    assert (again.asked, again.use) == (asked, use)


def test_a_new_machine_remembers_nothing(tmp_path: Path) -> None:
    assert SavedState(tmp_path).asked == OwnerRequest()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"wish": "explode", "until": null, "month": "", "sent_bytes": 0, "received_bytes": 0}'],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    memory = SavedState(tmp_path)
    assert (memory.asked, memory.use) == (OwnerRequest(), MonthUse())


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    memory = SavedState(tmp_path / "gone")
    with pytest.raises(RunFolderError):
        memory.save(OwnerRequest("pause"), MonthUse())
