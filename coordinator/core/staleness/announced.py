"""Which versions were announced: what a rollout may claim to be made with, and what an accusation may be about."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollcast.wire.ids import Version

NEWEST_KEPT = 8  # versions remembered however old they are: peers may still be receiving them


class AnnouncedVersions:
    """Versions that count with their number of chunks; those too old for any batch are forgotten."""

    def __init__(self, chunk_counts: Mapping[Version, int]) -> None:
        self._chunk_counts = dict(sorted(chunk_counts.items()))
        self._forgotten_below = min(self._chunk_counts, default=Version(0))

    def __len__(self) -> int:
        return len(self._chunk_counts)

    def add(self, version: Version, chunk_count: int, *, oldest_useful: Version) -> None:
        """One more, newer than all before; forget those older than ``oldest_useful``, except the newest few."""
        self._chunk_counts[version] = chunk_count
        for old in list(self._chunk_counts)[:-NEWEST_KEPT]:
            if old >= oldest_useful:
                break
            del self._chunk_counts[old]
            self._forgotten_below = Version(old + 1)

    def withdraw(self, is_orphan: Callable[[Version], bool]) -> None:
        """An epoch was opened: forget the versions that do not count any more."""
        self._chunk_counts = {one: count for one, count in self._chunk_counts.items() if not is_orphan(one)}

    def latest(self, count: int) -> list[Version]:
        """The newest ones, oldest first."""
        return sorted(self._chunk_counts)[-count:]

    def may_contain(self, version: Version) -> bool:
        """Whether it was announced, or is so old that we cannot tell: then whatever is made with it is stale."""
        return version in self._chunk_counts or version < self._forgotten_below

    def chunk_count(self, version: Version) -> int | None:
        """Chunks of its encoding that has most; None if it was never announced, or is forgotten."""
        return self._chunk_counts.get(version)
