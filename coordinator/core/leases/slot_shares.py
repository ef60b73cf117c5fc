"""Count the slots of open and ready groups by who holds or filled them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from coordinator.core.leases.attempts import Attempt
from rollcast.wire.ids import PeerId

KeyT = TypeVar("KeyT")


class SlotShares:
    """Counts attempts that are live or filled their slot, by identity and by invite, and live ones of newcomers."""

    def __init__(self) -> None:
        self.by_peer: Counter[PeerId] = Counter()
        self.by_invite: Counter[str] = Counter()
        self.on_trial: Counter[str] = Counter()
        """Live attempts of peers that had delivered nothing when they were issued, by invite."""

    def add(self, attempt: Attempt, *, live: bool) -> None:
        """Count an attempt that became live, or filled its slot."""
        self.by_peer[attempt.peer_id] += 1
        self.by_invite[attempt.invite] += 1
        if live and attempt.on_trial:
            self.on_trial[attempt.invite] += 1

    def remove(self, attempt: Attempt, *, live: bool) -> None:
        """Take an attempt out of the counts."""
        _take(self.by_peer, attempt.peer_id)
        _take(self.by_invite, attempt.invite)
        if live and attempt.on_trial:
            _take(self.on_trial, attempt.invite)

    def validate(self, live: Iterable[Attempt], filled: Iterable[Attempt]) -> None:
        """Raise AssertionError when the counts are not those of these attempts."""
        counted = SlotShares()
        for attempt in live:
            counted.add(attempt, live=True)
        for attempt in filled:
            counted.add(attempt, live=False)
        assert counted.by_peer == self.by_peer, "slots by peer"
        assert counted.by_invite == self.by_invite, "slots by invite"
        assert counted.on_trial == self.on_trial, "slots on trial"


def _take(counts: Counter[KeyT], key: KeyT) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
