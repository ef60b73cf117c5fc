"""What the coordinator believes that we can take: our last word, less what it granted since. Pure."""

from __future__ import annotations


class SlotsAsked:
    """Of one session: a new one knows nothing."""

    def __init__(self) -> None:
        self._told: int | None = None

    def granted(self, slots: int) -> None:
        """Leases of so many slots came."""
        if self._told is not None:
            self._told = max(0, self._told - slots)

    def is_news(self, free_slots: int) -> bool:
        """Whether the coordinator must be told; it then counts as told."""
        if free_slots == self._told or (free_slots == 0 and self._told is None):
            return False
        self._told = free_slots
        return True
