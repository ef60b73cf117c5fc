"""Learn how often workers of each market are preempted, from what happens during the run.

A market is what is taken away together: a provider's hardware in one region. Its rate has a gamma distribution, whose
prior mean is the rate that the worker's price states; preemptions and hours seen are added to it (the conjugate prior
of Poisson events), and both fade, because a market's pressure changes within hours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from capacity.model.units import SECONDS_PER_HOUR
from capacity.model.workers import Worker

PRIOR_HOURS = 8.0  # worker hours that the stated rate is worth
_FADES_HOURS = 6.0  # after which what was seen counts 1/e

Market = tuple[str, str, str]


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

    def learned(self, worker: Worker, now: float) -> Worker:
        """Return the worker with the rate of its market."""
        return replace(worker, preemptions_per_hour=self.per_hour(worker, now))

    def _counted(self, worker: Worker, now: float) -> _Seen:
        market = (worker.provider, worker.region, worker.hardware)
        seen = self._markets.get(market)
        if seen is None:
            seen = self._markets[market] = _Seen(counted_at=now)
        seen.count(now)
        return seen
