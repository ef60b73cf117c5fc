from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from coordinator.ledger.disk_guard import BALLAST, DiskGuard, free_bytes
from rollcast.runtime.errors import RunFolderError


class Disk:
    def __init__(self, folder: Path) -> None:
        self.free = 10_000
        self.guard = DiskGuard(folder, free_bytes_min=1000, ballast_bytes=500, probe=lambda _: self.free)

    def refused_and_ballast(self, free: int) -> tuple[bool, bool]:
        """Return whether uploads are refused with ``free`` bytes, and whether the ballast exists."""
        self.free = free
        self.guard.check()
        return self.guard.refusing, (self.guard._folder / BALLAST).exists()


def test_uploads_are_refused_until_enough_space_is_free(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert disk.refused_and_ballast(10_000) == (False, True)
    assert (tmp_path / BALLAST).stat().st_size == 500
    assert disk.refused_and_ballast(1000) == (False, True)
    assert disk.refused_and_ballast(999) == (True, False)
    assert disk.refused_and_ballast(1499) == (True, False)  # the bytes of the ballast itself are not enough
    assert disk.refused_and_ballast(2499) == (True, False)
    assert disk.refused_and_ballast(2500) == (False, True)


def test_change_is_returned_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert [disk.guard.check() for _ in range(3)] == [True, False, False]
    disk.free = 0
    assert [disk.guard.check() for _ in range(3)] == [True, False, False]


def test_close_deletes_the_ballast(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert disk.refused_and_ballast(10_000) == (False, True)
    disk.guard.close()
    disk.guard.close()
    assert not (tmp_path / BALLAST).exists()


def test_a_small_disk_has_no_ballast_and_is_used(tmp_path: Path) -> None:
    assert Disk(tmp_path).refused_and_ballast(1200) == (False, False)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    guard = DiskGuard(tmp_path / "gone", free_bytes_min=1, ballast_bytes=1)
    with pytest.raises(RunFolderError, match="gone"):
        guard.check()
    assert free_bytes(tmp_path) > 0


def test_a_ballast_that_cannot_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(errno.EDQUOT, "over the quota")))
        assert disk.refused_and_ballast(10_000) == (False, False)
        assert disk.refused_and_ballast(0) == (True, False)
        assert disk.refused_and_ballast(10_000) == (True, False), "there is less space than it seems"
    assert disk.refused_and_ballast(10_000) == (False, True)
