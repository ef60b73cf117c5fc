"""Learn how often workers of each market are preempted, from what happens during the run.

A market is what is taken away together: a provider's hardware in one region. Its rate has a gamma distribution, whose
prior mean is the rate that the worker's price states; preemptions and hours seen are added to it (the conjugate prior
of Poisson events), and both fade, because a market's pressure changes within hours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from capacity.model.units import SECONDS_PER_HOUR
from capacity.model.workers import Worker

PRIOR_HOURS = 8.0  # worker hours that the stated rate is worth
_FADES_HOURS = 6.0  # after which what was seen counts 1/e

Market = tuple[str, str, str]  # provider, region, hardware
MARKETS_MAX = 1024  # kept, besides those that have workers, and kept over a restart


@dataclass(frozen=True, slots=True)
class MarketSeen:
    """What was seen of one market: worker hours and preemptions, both faded."""

    market: Market
    hours: float
    preemptions: float


@dataclass(slots=True)
class _Seen:
    """What was seen of one market; hours and preemptions are faded."""

    present: int = 0
    hours: float = 0.0
    preemptions: float = 0.0
    counted_at: float = 0.0

    def count(self, now: float) -> None:
        """Add the hours since the last count, and let what was seen before fade."""
        hours = (now - self.counted_at) / SECONDS_PER_HOUR
        kept = math.exp(-hours / _FADES_HOURS)
        self.hours = self.hours * kept + self.present * hours
        self.preemptions *= kept
        self.counted_at = now


class Preemptions:
    """Keeps the rate of preemptions by market. Times are in seconds on one clock."""

    def __init__(self) -> None:
        self._markets: dict[Market, _Seen] = {}

    def came(self, worker: Worker, now: float) -> None:
        """Count a worker that joined."""
        self._counted(worker, now).present += 1

    def gone(self, worker: Worker, now: float, *, preempted: bool) -> None:
        """Count a worker that left."""
        seen = self._counted(worker, now)
        seen.present -= 1
        seen.preemptions += preempted

    def per_hour(self, worker: Worker, now: float) -> float:
        """Return the expected preemptions per hour of such a worker."""
        seen = self._counted(worker, now)
        return (worker.preemptions_per_hour * PRIOR_HOURS + seen.preemptions) / (PRIOR_HOURS + seen.hours)

    def seen(self) -> tuple[MarketSeen, ...]:
        """Return what was seen of each market when it was last counted; of the MARKETS_MAX with the most hours."""
        found = [MarketSeen(market, one.hours, one.preemptions) for market, one in self._markets.items()]
        return tuple(sorted(found, key=lambda one: (-one.hours, one.market))[:MARKETS_MAX])

    def restore(self, markets: Iterable[MarketSeen], now: float) -> None:
        """Continue with what ``seen`` returned before a restart; its workers are counted when they join again."""
        for one in markets:
            self._markets[one.market] = _Seen(hours=one.hours, preemptions=one.preemptions, counted_at=now)

    def learned(self, worker: Worker, now: float) -> Worker:
        """Return the worker with the rate of its market."""
        return replace(worker, preemptions_per_hour=self.per_hour(worker, now))

    def _counted(self, worker: Worker, now: float) -> _Seen:
        market = (worker.provider, worker.region, worker.hardware)
        seen = self._markets.get(market)
        if seen is None:
            self._make_room()
            seen = self._markets[market] = _Seen(counted_at=now)
        seen.count(now)
        return seen

    def _make_room(self) -> None:
        """Remove the market that has been without workers the longest, where so many are known already.

        What was seen of it has faded the most. A market with workers stays, because they are still to be counted out.
        """
        if len(self._markets) < MARKETS_MAX:
            return
        empty = [market for market, one in self._markets.items() if not one.present]
        if empty:
            del self._markets[min(empty, key=lambda market: self._markets[market].counted_at)]
