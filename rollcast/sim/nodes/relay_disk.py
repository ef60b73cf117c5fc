"""Versions on a simulated relay's disk: chunks of what is on its way, and what is whole.

A chunk is on the disk once it is written and survives a power loss once it is synced; a version counts as held only
with its record, which is written last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollcast.sim.kernel.disk import Disk
from rollcast.sim.versions import CHUNK_BYTES, Published
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import VerifiedVersion, state_hash


@dataclass(frozen=True, slots=True)
class Kept:
    """One version on disk. ``chunks`` are as they came; ``whole`` once all of it was checked and finished."""

    verified: VerifiedVersion
    hashes: bytes
    chunks: dict[int, bytes] = field(default_factory=dict)
    whole: bool = False

    @classmethod
    def of(cls, published: Published) -> Kept:
        """All of a version, as its learner has it."""
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
        """Whether every chunk is here, right or wrong."""
        return len(self.chunks) == self.count

    @property
    def passes(self) -> bool:
        """The store's own check: whether the bytes hash to the signed record."""
        return self.right

    @property
    def right(self) -> bool:
        """The truth, for the judge."""
        data = b"".join(self.chunks[index] for index in sorted(self.chunks))
        return len(data) == self.count * CHUNK_BYTES and state_hash(data) == self.verified.record.state_hash


class RelayDisk:
    """The versions of one machine."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def get(self, version: int) -> Kept | None:
        """What is here of a version."""
        found: Kept | None = self.disk.read(_name(version))
        return found

    def all(self) -> list[Kept]:
        """Everything here, oldest first."""
        return [self.disk.read(name) for name in self.disk.names("version-")]

    def begin(self, verified: VerifiedVersion, hashes: bytes) -> Kept:
        """Open a version; what is here already stays.

        Raises:
            DiskFull: it is.
        """
        kept = self.get(verified.version)
        if kept is None:
            kept = Kept(verified, hashes)
            self.disk.write(_name(verified.version), kept)
        return kept

    def add(self, version: Version, index: int, payload: bytes) -> None:
        """Write one chunk.

        Raises:
            DiskFull: it is.
        """
        kept = self.get(version)
        if kept is not None and not kept.whole:
            chunks = {**kept.chunks, index: payload}
            self.disk.write(_name(version), Kept(kept.verified, kept.hashes, chunks))

    def finish(self, version: Version) -> None:
        """All of it was checked: from now on it is visible.

        Raises:
            DiskFull: it is.
        """
        kept = self.get(version)
        if kept is not None:
            self.disk.write(_name(version), Kept(kept.verified, kept.hashes, kept.chunks, whole=True))

    def put(self, kept: Kept) -> None:
        """A whole version at once.

        Raises:
            DiskFull: it is.
        """
        self.disk.write(_name(kept.verified.version), kept)

    def sync(self, version: Version) -> None:
        """An fsync of a version's files ended."""
        self.disk.sync(_name(version))

    def durable(self, version: int) -> Kept | None:
        """What a power loss leaves of it."""
        found: Kept | None = self.disk.synced(_name(version))
        return found

    def discard(self, version: Version) -> None:
        """Give its space back."""
        self.disk.remove(_name(version))

    def surplus(self, keep: int) -> list[Version]:
        """Whole versions beyond the newest ``keep``, and parts older than all of those."""
        whole = [kept.verified.version for kept in self.all() if kept.whole]
        if len(whole) <= keep:
            return []
        return [kept.verified.version for kept in self.all() if kept.verified.version < whole[-keep]]


def _name(version: int) -> str:
    return f"version-{version:09d}"
