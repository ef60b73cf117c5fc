"""At which of its addresses the coordinator is looked for next, and what came of looking. Decisions only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.wire.joining.diagnose import HopFailed

_SAID_AGAIN_S = 600.0
"""The same problem is worth another line in the log after this long."""


@dataclass(slots=True)
class _Place:
    address: str
    failures: int = 0
    problem: HopFailed | None = None
    failed_at_s: float = 0.0
    said_at_s: float | None = None


class Coordinators:
    """All addresses of one coordinator, tried in turn; where a session opened, it is looked for again first.

    Args:
        addresses: host:port, at least one.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._places = [_Place(address) for address in dict.fromkeys(addresses)]
        self._index = 0

    @property
    def current(self) -> str:
        """Where to look now."""
        return self._places[self._index].address

    def opened(self) -> None:
        """There is a session at ``current``."""
        for place in self._places:
            place.failures, place.problem, place.said_at_s = 0, None, None

    def failed(self, problem: HopFailed, now: float) -> bool:
        """Nothing came of ``current``: the next one's turn. Whether it is worth saying: it is new, or said long ago."""
        place = self._places[self._index]
        is_known = place.problem == problem and place.said_at_s is not None and now - place.said_at_s < _SAID_AGAIN_S
        place.failures += 1
        place.problem, place.failed_at_s = problem, now
        self._index = (self._index + 1) % len(self._places)
        if not is_known:
            place.said_at_s = now
        return not is_known

    def problems(self) -> list[HopFailed]:
        """What is wrong with each address that was tried since the last session."""
        return [place.problem for place in self._places if place.problem is not None]

    def rows(self, now: float) -> list[dict[str, Any]]:
        """For screens, one for each address that fails: address, hop, reason, fix, failures, seconds ago."""
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
