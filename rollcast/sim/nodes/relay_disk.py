"""Keep versions on a simulated relay's disk: the chunks of incomplete versions, and whole versions.

A chunk is on the disk once it is written, and survives a power loss once it is synced. A version counts as held only
with its record, which is written last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollcast.sim.kernel.disk import Disk
from rollcast.sim.versions import CHUNK_BYTES, Published
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import VerifiedVersion
from rollcast.wire.versions.state_hash import state_hash


@dataclass(frozen=True, slots=True)
class Kept:
    """One version on disk.

    Attributes:
        chunks: the bytes of each chunk as received.
        whole: whether every chunk was checked and the version finished.
    """

    verified: VerifiedVersion
    hashes: bytes
    chunks: dict[int, bytes] = field(default_factory=dict)
    whole: bool = False

    @classmethod
    def of(cls, published: Published) -> Kept:
        """Return the whole version as its learner published it."""
        chunks = {
            index: published.data[start : start + CHUNK_BYTES]
            for index, start in enumerate(range(0, len(published.data), CHUNK_BYTES))
        }
        return cls(published.verified, published.chunk_hashes, chunks, whole=True)

    @property
    def count(self) -> int:
        return self.verified.keyframe.chunk_count

    @property
    def complete(self) -> bool:
        """Whether every chunk is present, right or wrong."""
        return len(self.chunks) == self.count

    @property
    def passes(self) -> bool:
        """Whether the store's own check passes: the bytes hash to the signed record."""
        return self.right

    @property
    def right(self) -> bool:
        """Whether the bytes are truly the signed ones; for the judge, whatever a mutant makes of ``passes``."""
        data = b"".join(self.chunks[index] for index in sorted(self.chunks))
        return len(data) == self.count * CHUNK_BYTES and state_hash(data) == self.verified.record.state_hash


class RelayDisk:
    """The versions on one machine's disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def get(self, version: int) -> Kept | None:
        """Return the stored part of a version; None if nothing of it is stored."""
        found: Kept | None = self.disk.read(_name(version))
        return found

    def all(self) -> list[Kept]:
        """Return every stored version, oldest first."""
        return [self.disk.read(name) for name in self.disk.names("version-")]

    def begin(self, verified: VerifiedVersion, hashes: bytes) -> Kept:
        """Open a version for writing; chunks that are stored already stay.

        Raises:
            DiskFull: the disk is full.
        """
        kept = self.get(verified.version)
        if kept is None:
            kept = Kept(verified, hashes)
            self.disk.write(_name(verified.version), kept)
        return kept

    def add(self, version: Version, index: int, payload: bytes) -> None:
        """Write one chunk.

        Raises:
            DiskFull: the disk is full.
        """
        kept = self.get(version)
        if kept is not None and not kept.whole:
            chunks = {**kept.chunks, index: payload}
            self.disk.write(_name(version), Kept(kept.verified, kept.hashes, chunks))

    def finish(self, version: Version) -> None:
        """Make a version visible as whole, once all of it was checked.

        Raises:
            DiskFull: the disk is full.
        """
        kept = self.get(version)
        if kept is not None:
            self.disk.write(_name(version), Kept(kept.verified, kept.hashes, kept.chunks, whole=True))

    def put(self, kept: Kept) -> None:
        """Write a whole version at once.

        Raises:
            DiskFull: the disk is full.
        """
        self.disk.write(_name(kept.verified.version), kept)

    def sync(self, version: Version) -> None:
        """Make what was written of a version durable; called when its fsync ends."""
        self.disk.sync(_name(version))

    def durable(self, version: int) -> Kept | None:
        """Return the part of a version that is certain to survive a power loss; None if nothing is."""
        found: Kept | None = self.disk.synced(_name(version))
        return found

    def discard(self, version: Version) -> None:
        """Delete a version."""
        self.disk.remove(_name(version))

    def surplus(self, keep: int) -> list[Version]:
        """Return the versions, whole or not, that are older than the newest ``keep`` whole ones."""
        whole = [kept.verified.version for kept in self.all() if kept.whole]
        if len(whole) <= keep:
            return []
        return [kept.verified.version for kept in self.all() if kept.verified.version < whole[-keep]]


def _name(version: int) -> str:
    return f"version-{version:09d}"
