from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger.sqlite import Ledger
from coordinator.shell.announcements import KEPT, Announcements
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.proto import rollcast_pb2 as pb


def announcement(number: int) -> pb.VersionAnnouncement:
    return pb.VersionAnnouncement(record=pb.Signed(payload=bytes([number])))


async def test_the_newest_are_in_memory_and_the_others_in_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    announcements = Announcements(ledger)
    await ledger.record_version(Epoch(0), Version(0), announcement(0).SerializeToString())
    for number in range(KEPT + 1):
        announcements.remember(Epoch(0), Version(number), announcement(number))
    assert announcements.in_memory(Epoch(0), Version(0)) is None
    assert announcements.in_memory(Epoch(0), Version(KEPT)) == announcement(KEPT)
    assert await announcements.stored(Version(0)) == announcement(0)
    assert announcements.in_memory(Epoch(0), Version(0)) == announcement(0)
    with pytest.raises(StoreError, match="version 7 is not in the ledger"):
        await announcements.stored(Version(7))
    await ledger.close()
