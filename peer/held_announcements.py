"""Versions that are announced while their chunks may not come: looked at once they may. Pure."""

from __future__ import annotations

from collections import deque

from rollcast.wire.proto import rollcast_pb2 as pb

_NEWEST_KEPT = 8  # who was away for a few versions may follow their deltas


class HeldAnnouncements:
    """Empty as long as everything may come."""

    def __init__(self) -> None:
        self._open = True
        self._held: deque[pb.VersionAnnouncement] = deque(maxlen=_NEWEST_KEPT)

    def came(self, announcement: pb.VersionAnnouncement) -> bool:
        """Whether it is to be looked at now; else it is held, and may make older ones forgotten."""
        if not self._open:
            self._held.append(announcement)
        return self._open

    def allow(self, is_open: bool) -> list[pb.VersionAnnouncement]:
        """Whether chunks may come from now on; those to be looked at now, oldest first."""
        self._open = is_open
        released = list(self._held) if is_open else []
        if is_open:
            self._held.clear()
        return released
