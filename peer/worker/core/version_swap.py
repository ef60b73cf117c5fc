"""Decide when a worker loads a newer version besides the active one, and when it swaps to it."""

from __future__ import annotations

from peer.worker.core.events import Action, ActivateVersion, LoadVersion, VersionKey


class VersionSwap:
    """Keeps the active version, which only rises and whose epoch never falls, and those that are to follow."""

    def __init__(self) -> None:
        self.active: VersionKey | None = None
        self.newest_verified: VersionKey | None = None
        self.activating = False
        """Whether an ActivateVersion is in progress."""
        self._newest_announced: VersionKey | None = None
        self._loading: VersionKey | None = None
        self.waiting: VersionKey | None = None
        """The version that is loaded besides the active one and waits for its swap."""

    @property
    def newest_known(self) -> VersionKey | None:
        """Return the newest version that is here or announced; None if there is none."""
        known = filter(None, (self.active, self._newest_announced, self.newest_verified))
        return max(known, default=None)

    @property
    def waits(self) -> bool:
        """Return whether a newer version is loaded and waits for its swap."""
        return self.waiting is not None

    def announced(self, key: VersionKey) -> None:
        """Note that a version's announcement came."""
        self._newest_announced = _newer(key, self._newest_announced)

    def verified(self, key: VersionKey) -> None:
        """Note that a version is complete on this disk."""
        self.newest_verified = _newer(key, self.newest_verified)

    def loaded(self, key: VersionKey) -> None:
        """Note that the engine has loaded a version besides the active one."""
        self._loading, self.waiting = None, key

    def replaced(self, key: VersionKey) -> None:
        """Note that a version cannot be loaded because a newer one took its place; that one is loaded when verified."""
        self._loading = None
        if self.newest_verified == key:
            self.newest_verified = None

    def activated(self, key: VersionKey) -> None:
        """Note that the engine swapped to a version."""
        self.active, self.waiting, self.activating = key, None, False

    def step(self, may_swap: bool, may_replace: bool = True) -> list[Action]:
        """Swap to the loaded version if ``may_swap``; otherwise load one newer than the active and loaded versions.

        ``may_replace``: whether a loaded version makes room for a newer one before its swap.
        """
        newest = self.newest_verified
        if self.activating or self._loading is not None:
            return []
        if self.waiting is not None and may_swap:
            self.activating = True
            return [ActivateVersion(self.waiting)]
        # A batch may outlast several versions: the one that is loaded makes room for a newer one.
        if newest is None or not self._above_active(newest):
            return []
        if self.waiting is not None and (newest <= self.waiting or not may_replace):
            return []
        self._loading = newest
        return [LoadVersion(newest)]

    def why_not_active(self) -> str:
        """Return in words what the first version waits for."""
        if self._loading is not None:
            return f"loading version {self._loading.version} and compiling"
        if self._newest_announced is not None:
            return f"waiting for the chunks of version {self._newest_announced.version}"
        return "waiting for the first version to be announced"

    def _above_active(self, key: VersionKey) -> bool:
        active = self.active
        return active is None or (key.version > active.version and key.epoch >= active.epoch)


def _newer(key: VersionKey, other: VersionKey | None) -> VersionKey:
    return key if other is None else max(key, other)
