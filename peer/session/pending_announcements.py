"""Hold version announcements while the owner's limits forbid receiving, and release them when they allow it. Pure."""

from __future__ import annotations

from collections import deque

from peer.links.gate import OPEN, NetworkGate
from rollcast.wire.proto import rollcast_pb2 as pb

_NEWEST_KEPT = 8  # enough for a peer that missed a few versions to follow their deltas


class PendingAnnouncements:
    """The announcements that wait for the gate to open; none while receiving is allowed."""

    def __init__(self) -> None:
        self.gate = OPEN
        """The traffic allowed now."""
        self._held: deque[pb.VersionAnnouncement] = deque(maxlen=_NEWEST_KEPT)

    def came(self, announcement: pb.VersionAnnouncement) -> bool:
        """Return whether to handle the announcement now; otherwise it is held, and the oldest held one is discarded."""
        if not self.gate.receive:
            self._held.append(announcement)
        return self.gate.receive

    def allow(self, gate: NetworkGate) -> list[pb.VersionAnnouncement]:
        """Replace the gate, and return the announcements to handle now, oldest first."""
        self.gate = gate
        released = list(self._held) if gate.receive else []
        if gate.receive:
            self._held.clear()
        return released
