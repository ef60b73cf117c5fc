"""Keep the signed announcements of versions: the newest in memory, the others in the ledger."""

from __future__ import annotations

from collections import OrderedDict

from coordinator.ledger.store import RunStore
from rollcast.runtime.errors import StoreError
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.proto import rollcast_pb2 as pb

KEPT = 32
LEDGER_DEADLINE_S = 60.0


class Announcements:
    """The announcements that are sent to peers."""

    def __init__(self, ledger: RunStore) -> None:
        self._ledger = ledger
        self._newest: OrderedDict[tuple[Epoch, Version], pb.VersionAnnouncement] = OrderedDict()

    def in_memory(self, epoch: Epoch, version: Version) -> pb.VersionAnnouncement | None:
        """Return the announcement if it is in memory; None otherwise."""
        return self._newest.get((epoch, version))

    def remember(self, epoch: Epoch, version: Version, announcement: pb.VersionAnnouncement) -> None:
        """Keep an announcement in memory; beyond KEPT the oldest is discarded."""
        self._newest[(epoch, version)] = announcement
        while len(self._newest) > KEPT:
            self._newest.popitem(last=False)

    async def stored(self, version: Version) -> pb.VersionAnnouncement:
        """Load the announcement from the ledger.

        Raises:
            StoreError: the ledger has none of this version.
            WaitTimedOut: the ledger takes too long.
        """
        async with deadline(LEDGER_DEADLINE_S, "the ledger to find an announcement"):
            stored = await self._ledger.version(version)
        if stored is None:
            raise StoreError(f"the announcement of version {version} is not in the ledger")
        announcement = pb.VersionAnnouncement.FromString(stored.announcement)
        self.remember(stored.epoch, stored.version, announcement)
        return announcement
