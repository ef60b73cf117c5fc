"""Test the ledger on a disk that loses power, and the simulated disk itself."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from bench.durability import powerloss
from bench.durability.powerloss import lose
from bench.stores.forgetful_disk import ForgetfulDisk, PowerLoss
from rollcast.runtime.errors import LedgerDamaged


async def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    sums = await lose(tmp_path, 12, random.Random(1), synchronous="FULL")
    assert sums.acked > 100
    assert (sums.lost, sums.torn, sums.damaged) == (0, 0, 0)


async def test_a_ledger_that_does_not_sync_fails_the_check(tmp_path: Path) -> None:
    sums = await lose(tmp_path, 6, random.Random(1), synchronous="OFF")
    assert sums.lost + sums.torn + sums.damaged > 0


async def test_a_ledger_older_than_its_mark_counts_as_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a slow machine, on which a mark is written before the power is lost."""

    async def older(*_: object) -> None:
        raise LedgerDamaged("the ledger is older than it was")

    monkeypatch.setattr(powerloss, "_until_lost", older)
    sums = await lose(tmp_path, 1, random.Random(1), synchronous="OFF")
    assert (sums.lost, sums.torn, sums.damaged) == (0, 0, 1)


def opened(disk: ForgetfulDisk, name: str = "/a") -> apsw.VFSFile:
    file: apsw.VFSFile = disk.xOpen(name, [apsw.SQLITE_OPEN_READWRITE, 0])
    return file


def test_synced_data_survives_and_the_rest_is_torn() -> None:
    disk = ForgetfulDisk("pieces")
    file = opened(disk)
    file.xWrite(b"a" * 4096, 0)
    file.xSync(0)
    file.xWrite(b"b" * 4096, 0)
    seen = set()
    for seed in range(50):
        disk.files["/a"].unsynced[:] = [(0, b"b" * 4096)]
        disk.files["/a"].synced = b"a" * 4096
        disk.lose_power(random.Random(seed))
        kept = bytes(disk.files["/a"].current)
        assert all(kept[start : start + 512] in (b"a" * 512, b"b" * 512) for start in range(0, 4096, 512))
        seen.add(kept.count(b"b"))
    assert {0, 4096} < seen


def test_a_file_that_was_never_synced_may_be_gone() -> None:
    gone = 0
    for seed in range(20):
        disk = ForgetfulDisk(f"gone-{seed}")
        opened(disk).xWrite(b"a", 0)
        disk.lose_power(random.Random(seed))
        gone += not disk.xAccess("/a", 0)
    assert 0 < gone < 20


def test_without_power_nothing_is_written_or_read() -> None:
    disk = ForgetfulDisk("off")
    file = opened(disk)
    disk.writes_left = 1
    file.xWrite(b"a", 0)
    for call in (lambda: file.xWrite(b"b", 0), lambda: file.xRead(1, 0), lambda: file.xSync(0)):
        with pytest.raises(PowerLoss):
            call()
    disk.xDelete("/a", False)
    assert disk.xAccess("/a", 0)
