"""Remember what a core that restarts has to hear about a session that a gateway kept. Pure.

A peer reports its state when its session opens, and from then on what changes. With its session it therefore keeps the
newest report of each kind, and the number of slots that it still wants: those of its last request, less what it was
leased since. Of what the core sent it keeps the newest version that was announced, which need not be announced again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import lru_cache

from coordinator.core.events.events import (
    HeartbeatReceived,
    LeasesReturned,
    PeerJoined,
    VersionHeld,
    WorkRequested,
)
from coordinator.core.events.reach_events import ReachabilityTold, RecordGiven
from coordinator.link.frames import SessionEvent
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb

_REPLACED = (VersionHeld, ReachabilityTold, RecordGiven, HeartbeatReceived)  # in the order in which they are repeated
_RETURNS_KEPT = 16  # orders to take leases back that the core has not heard; their deadlines end the others


class HeldSession:
    """What one peer said that still holds."""

    def __init__(self, joined: PeerJoined) -> None:
        # The leases in Hello are those that it held when it began: it may have other ones now.
        self.joined = replace(joined, held_leases=None)
        self._newest: dict[type[SessionEvent], SessionEvent] = {}
        self._heard_version: Version | None = None
        self._free_slots: int | None = None
        self._returned: deque[LeasesReturned] = deque(maxlen=_RETURNS_KEPT)

    def note(self, event: SessionEvent, *, heard: bool) -> None:
        """Note what the peer reported; ``heard``: the core was connected."""
        match event:
            case WorkRequested():
                self._free_slots = event.free_slots
            case LeasesReturned():
                self._free_slots = 0  # it asks again once it can take work
                if not heard:
                    self._returned.append(event)
            case HeartbeatReceived():
                before = self._newest.get(HeartbeatReceived)
                facts = event.completed(before.facts if isinstance(before, HeartbeatReceived) else None)
                self._newest[HeartbeatReceived] = HeartbeatReceived(event.peer_id, facts)
            case _ if isinstance(event, _REPLACED):
                self._newest[type(event)] = event

    def delivered(self, message: pb.CoordinatorMessage) -> None:
        """Note a message that the core sent to the peer."""
        body = message.WhichOneof("body")
        if body == "announcement":
            version = _version_in(message.announcement.record.payload)
            self._heard_version = max(version, self._heard_version or version)
        elif body == "leases" and self._free_slots is not None:
            leased = sum(len(lease.slots) for lease in message.leases.leases)
            self._free_slots = max(0, self._free_slots - leased)

    def resumed(self) -> PeerJoined:
        """Return the event with which the session begins at a new core."""
        return replace(self.joined, heard_version=self._heard_version)

    def repeated(self) -> list[SessionEvent]:
        """Return what a new core has to be told after ``resumed``; leases that were returned are told only once."""
        events: list[SessionEvent] = [*self._returned]
        self._returned.clear()
        events += [self._newest[kind] for kind in _REPLACED if kind in self._newest]
        if self._free_slots is not None:
            events.append(WorkRequested(self.joined.peer_id, self._free_slots))
        return events


@lru_cache(maxsize=16)  # all peers are sent the same ones
def _version_in(record: bytes) -> Version:
    return Version(pb.VersionRecord.FromString(record).version)
