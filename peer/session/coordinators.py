"""Choose the address at which to look for the coordinator next, and remember why others failed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.wire.joining.diagnose import HopFailed

_LOG_AGAIN_S = 600.0
"""Seconds after which the same problem is logged again."""


@dataclass(slots=True)
class _Place:
    address: str
    failures: int = 0
    problem: HopFailed | None = None
    failed_at_s: float = 0.0
    logged_at_s: float | None = None


class Coordinators:
    """All addresses of one coordinator, tried in turn; the one at which a session opened is retried first.

    Args:
        addresses: host:port, at least one.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._places = [_Place(address) for address in dict.fromkeys(addresses)]
        self._index = 0

    @property
    def current(self) -> str:
        """The address to try now."""
        return self._places[self._index].address

    @property
    def others(self) -> list[str]:
        """The other addresses, the next one to try first; empty if there is one address only."""
        count = len(self._places)
        return [self._places[(self._index + step) % count].address for step in range(1, count)]

    def move_to(self, address: str) -> None:
        """Try this address, one of ``others``, next."""
        self._index = [place.address for place in self._places].index(address)

    def opened(self) -> None:
        """Record a session at ``current``: all earlier problems are over."""
        for place in self._places:
            place.failures, place.problem, place.logged_at_s = 0, None, None

    def failed(self, problem: HopFailed, now: float) -> bool:
        """Record a failure of ``current`` and move to the next address.

        Return whether to log the problem: it is new, or was last logged _LOG_AGAIN_S ago.
        """
        place = self._places[self._index]
        is_known = place.problem == problem and place.logged_at_s is not None and now - place.logged_at_s < _LOG_AGAIN_S
        place.failures += 1
        place.problem, place.failed_at_s = problem, now
        self._index = (self._index + 1) % len(self._places)
        if not is_known:
            place.logged_at_s = now
        return not is_known

    def problems(self) -> list[HopFailed]:
        """Return the problem of each address that was tried since the last session."""
        return [place.problem for place in self._places if place.problem is not None]

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Return a row for each failing address, for screens: address, hop, reason, fix, failures, seconds ago."""
        return [
            {
                "address": place.address,
                "hop": place.problem.hop,
                "reason": place.problem.reason,
                "fix": place.problem.fix,
                "failures": place.failures,
                "seconds_ago": round(now - place.failed_at_s, 1),
            }
            for place in self._places
            if place.problem is not None
        ]
