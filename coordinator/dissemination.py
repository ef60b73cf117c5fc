"""T_bcast: from a version's announcement to the last active peer's verified copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.figures import Window
from rollcast.wire.ids import PeerId, Version

_VERSIONS_WATCHED = 64  # a peer that lags further behind than this is a slow peer, not a broadcast under way


@dataclass(slots=True)
class _Broadcast:
    announced_at: float
    missing: set[PeerId]
    last_held_at: float | None = None


class Dissemination:
    """Watches each announced version until the last peer that was active at its announcement holds it.

    Peers that leave meanwhile do not count. A peer that holds a newer version counts as holding the older ones.
    """

    def __init__(self) -> None:
        self._running: dict[Version, _Broadcast] = {}
        self.seconds = Window()

    @property
    def running(self) -> int:
        """Versions that some active peer still lacks."""
        return len(self._running)

    def announced(self, version: Version, peers: Iterable[PeerId], now: float) -> None:
        missing = set(peers)
        if not missing:
            return
        self._running[version] = _Broadcast(now, missing)
        while len(self._running) > _VERSIONS_WATCHED:
            del self._running[next(iter(self._running))]

    def held(self, peer_id: PeerId, version: Version, now: float) -> None:
        for watched in [watched for watched in self._running if watched <= version]:
            broadcast = self._running[watched]
            if peer_id in broadcast.missing:
                broadcast.missing.discard(peer_id)
                broadcast.last_held_at = now
                self._settle(watched)

    def left(self, peer_id: PeerId) -> None:
        for watched in list(self._running):
            self._running[watched].missing.discard(peer_id)
            self._settle(watched)

    def _settle(self, version: Version) -> None:
        broadcast = self._running[version]
        if broadcast.missing:
            return
        del self._running[version]
        if broadcast.last_held_at is not None:
            self.seconds.add(broadcast.last_held_at - broadcast.announced_at)
