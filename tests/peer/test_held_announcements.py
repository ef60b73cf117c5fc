from __future__ import annotations

from peer.held_announcements import HeldAnnouncements
from rollcast.wire.proto import rollcast_pb2 as pb


def announcement(version: int) -> pb.VersionAnnouncement:
    return pb.VersionAnnouncement(record=pb.Signed(payload=bytes([version])))


def test_nothing_is_held_while_all_may_come() -> None:
    held = HeldAnnouncements()
    assert held.came(announcement(1))
    assert held.allow(True) == []


def test_the_newest_are_looked_at_once_they_may_come() -> None:
    held = HeldAnnouncements()
    held.allow(False)
    assert not any(held.came(announcement(version)) for version in range(20))
    assert held.allow(False) == []
    assert held.allow(True) == [announcement(version) for version in range(12, 20)]
    assert held.allow(True) == []
    assert held.came(announcement(21))
