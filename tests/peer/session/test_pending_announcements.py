from __future__ import annotations

from peer.links.gate import OPEN, NetworkGate
from peer.session.pending_announcements import PendingAnnouncements
from rollcast.wire.proto import rollcast_pb2 as pb

SHUT = NetworkGate(send=False, receive=False, reason="paused")


def announcement(version: int) -> pb.VersionAnnouncement:
    return pb.VersionAnnouncement(record=pb.Signed(payload=bytes([version])))


def test_nothing_is_held_while_all_may_come() -> None:
    held = PendingAnnouncements()
    assert held.came(announcement(1))
    assert held.allow(OPEN) == []


def test_the_newest_are_looked_at_once_they_may_come() -> None:
    held = PendingAnnouncements()
    held.allow(SHUT)
    assert not any(held.came(announcement(version)) for version in range(20))
    assert held.allow(SHUT) == []
    assert held.allow(OPEN) == [announcement(version) for version in range(12, 20)]
    assert held.allow(OPEN) == []
    assert held.came(announcement(21))
