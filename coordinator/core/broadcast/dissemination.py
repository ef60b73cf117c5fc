"""Measure T_bcast, the time from a version's announcement to the last active peer's verified copy, and each peer's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coordinator.core.events.events import AnnouncedEncoding
from rollcast.runtime.windows import Distribution, RecentIdentities, Window
from rollcast.wire.ids import PeerId, PlanId, Version

SECONDS_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 300.0, 900.0, 3600.0)
_VERSIONS_WATCHED = 64  # a peer that lags further behind is a slow peer, not a broadcast in progress
_VERSIONS_REMEMBERED = 60  # the newest ones, for the status
_PEER_WINDOW = 32  # newest versions over which a peer's percentiles are computed


@dataclass(slots=True)
class Broadcast:
    """One announced version that peers are receiving. Times are the core's clock in seconds.

    Args:
        receivers: number of peers that were active at its announcement.
        missing: those receivers that are still connected and lack the version.
        plan_id: the relay plan at its announcement; None if there was none.
    """

    version: Version
    announced_at: float
    receivers: int
    missing: set[PeerId]
    plan_id: PlanId | None = None
    encodings: tuple[AnnouncedEncoding, ...] = ()
    last_held_at: float | None = None
    reports: int = 0
    bytes_reported: int = 0

    @property
    def bytes_per_peer(self) -> float | None:
        """Mean bytes that a peer received for this version; None before the first report."""
        return self.bytes_reported / self.reports if self.reports else None


@dataclass(slots=True)
class PeerTimes:
    """The seconds in which one peer held the versions that it received, counted from their announcements."""

    seconds: Window = field(default_factory=lambda: Window(_PEER_WINDOW))
    times_last: int = 0  # versions that this peer held last, so that the broadcast waited for it
    newest_held: Version | None = None


class Dissemination:
    """Watches each announced version until the last peer that was active at its announcement holds it.

    Peers that leave meanwhile do not count. A peer that holds a newer version counts as holding the older ones; its own
    times cover only the versions that it received.
    """

    def __init__(self) -> None:
        self._running: dict[Version, Broadcast] = {}
        self._peers: RecentIdentities[PeerId, PeerTimes] = RecentIdentities()
        self.seconds = Window()
        self.peer_seconds = Distribution(SECONDS_BOUNDS)
        self.newest: Broadcast | None = None  # announced last, whether or not it still runs
        self.recent: deque[Broadcast] = deque(maxlen=_VERSIONS_REMEMBERED)  # oldest first, those that still run too

    def joined(self, members: int) -> None:
        """Remember the times of this many members, and of as many that left and may come back."""
        self._peers.make_room(members)

    @property
    def running(self) -> int:
        """Versions that some active peer still lacks."""
        return len(self._running)

    def announced(
        self,
        version: Version,
        peers: Iterable[PeerId],
        now: float,
        *,
        plan_id: PlanId | None = None,
        encodings: tuple[AnnouncedEncoding, ...] = (),
    ) -> None:
        """Begin the broadcast of a version that these peers are to receive."""
        missing = set(peers)
        self.newest = Broadcast(version, now, len(missing), missing, plan_id, encodings)
        self.recent.append(self.newest)
        if not missing:
            return
        self._running[version] = self.newest
        while len(self._running) > _VERSIONS_WATCHED:
            del self._running[next(iter(self._running))]

    def held(self, peer_id: PeerId, version: Version, now: float) -> None:
        """Note that a peer holds a verified copy of this version."""
        times = self._remembered(peer_id)
        if times.newest_held is not None and version <= times.newest_held:
            return
        times.newest_held = version
        for watched in [watched for watched in self._running if watched <= version]:
            broadcast = self._running[watched]
            if peer_id not in broadcast.missing:
                continue
            broadcast.missing.discard(peer_id)
            broadcast.last_held_at = now
            if watched == version:
                times.seconds.add(now - broadcast.announced_at)
                self.peer_seconds.add(now - broadcast.announced_at)
            times.times_last += not broadcast.missing
            self._settle(watched)

    def withdrawn(self, is_orphan: Callable[[Version], bool]) -> None:
        """End the broadcasts of orphaned versions; peers may hold older versions after them."""
        for watched in [watched for watched in self._running if is_orphan(watched)]:
            del self._running[watched]
        if self.newest is not None and is_orphan(self.newest.version):
            self.newest = None
        for times in self._peers.values():
            if times.newest_held is not None and is_orphan(times.newest_held):
                times.newest_held = None

    def received(self, version: Version, bytes_received: int) -> None:
        """Note how many bytes of chunks a peer received for this version."""
        if self.newest is not None and self.newest.version == version:
            self.newest.reports += 1
            self.newest.bytes_reported += bytes_received

    def left(self, peer_id: PeerId) -> None:
        """Stop waiting for a peer."""
        for watched in list(self._running):
            self._running[watched].missing.discard(peer_id)
            self._settle(watched)

    def times_of(self, peer_id: PeerId) -> PeerTimes | None:
        """Return the times of this peer; None before its first version."""
        return self._peers.get(peer_id)

    def _remembered(self, peer_id: PeerId) -> PeerTimes:
        return self._peers.used(peer_id, PeerTimes)

    def _settle(self, version: Version) -> None:
        broadcast = self._running[version]
        if broadcast.missing:
            return
        del self._running[version]
        if broadcast.last_held_at is not None:
            self.seconds.add(broadcast.last_held_at - broadcast.announced_at)
