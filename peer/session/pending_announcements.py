"""Versions that are announced while their chunks may not come: looked at once they may. Pure."""

from __future__ import annotations

from collections import deque

from peer.links.gate import OPEN, NetworkGate
from rollcast.wire.proto import rollcast_pb2 as pb

_NEWEST_KEPT = 8  # who was away for a few versions may follow their deltas


class PendingAnnouncements:
    """Empty as long as everything may come."""

    def __init__(self) -> None:
        self.gate = OPEN
        """What may pass now."""
        self._held: deque[pb.VersionAnnouncement] = deque(maxlen=_NEWEST_KEPT)

    def came(self, announcement: pb.VersionAnnouncement) -> bool:
        """Whether it is to be looked at now; else it is held, and may make older ones forgotten."""
        if not self.gate.receive:
            self._held.append(announcement)
        return self.gate.receive

    def allow(self, gate: NetworkGate) -> list[pb.VersionAnnouncement]:
        """What may pass from now on; the announcements to be looked at now, oldest first."""
        self.gate = gate
        released = list(self._held) if gate.receive else []
        if gate.receive:
            self._held.clear()
        return released
