"""Report a fleet's cost and forecast by day and provider, from the rows of its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from capacity.fleet.events import Spent
from capacity.fleet.rows import ClosedRow, Fold, MarkRow, Row
from capacity.fleet.spending import NOTHING, minus, plus

SCHEMA = "rollcast.capacity.cost/1"


@dataclass(frozen=True, slots=True)
class DaySpending:
    """The spending on one provider in one day.

    Args:
        day: the day in UTC, as 2026-01-31.
        spent: cost and forecast in US dollars.
    """

    day: str
    provider: str
    spent: Spent


@dataclass(frozen=True, slots=True)
class SpendReport:
    """The spending of a run.

    Args:
        days: spending in order of day, then provider.
        running: number of running workers by provider; their cost since the last mark is not in ``days`` yet.
        accepted: rollouts that the run accepted.
    """

    days: tuple[DaySpending, ...]
    running: dict[str, int]
    accepted: int

    @property
    def total(self) -> Spent:
        """Return the sum over all days and providers."""
        found = NOTHING
        for one in self.days:
            found = plus(found, one.spent)
        return found

    @property
    def usd_per_accepted_rollout(self) -> float | None:
        """Return the cost per accepted rollout in US dollars; None if no rollout was accepted."""
        return spent_usd(self.total) / self.accepted if self.accepted else None

    def to_json(self) -> dict[str, Any]:
        """Return the report as a versioned document whose keys carry their units."""
        return {
            "schema": SCHEMA,
            "days": [{"day": one.day, "provider": one.provider, **_usd(one.spent)} for one in self.days],
            "total": _usd(self.total),
            "accepted_rollouts": self.accepted,
            "usd_per_accepted_rollout": self.usd_per_accepted_rollout,
            "running_workers": self.running,
        }


def spent_usd(spent: Spent) -> float:
    """Return the cost of machines and egress together, in US dollars."""
    return spent.machine_usd + spent.egress_usd


def spend_report(rows: Iterable[Row], accepted: int) -> SpendReport:
    """Sum the journal's marks by day and provider; a cost that no mark has yet counts for the day of the worker's end.

    Args:
        accepted: rollouts that the run accepted, from its ledger.
    """
    fold, by_day, ended_on = Fold(), dict[tuple[str, str], Spent](), dict[str, str]()
    for row in rows:
        fold.add(row)
        if isinstance(row, MarkRow):
            for provider, spent in row.spent.items():
                key = (_day(row.at), provider)
                by_day[key] = plus(by_day.get(key, NOTHING), spent)
        elif isinstance(row, ClosedRow):
            ended_on[row.provider] = _day(row.at)
    for provider, day in ended_on.items():
        unmarked = minus(fold.closed[provider], fold.marked.get(provider, NOTHING))
        if spent_usd(unmarked) > 0.0:
            money = Spent(unmarked.machine_usd, unmarked.egress_usd, 0.0)
            by_day[day, provider] = plus(by_day.get((day, provider), NOTHING), money)
    days = tuple(DaySpending(day, provider, spent) for (day, provider), spent in sorted(by_day.items()))
    running: dict[str, int] = {}
    for one in fold.opened.values():
        running[one.provider] = running.get(one.provider, 0) + 1
    return SpendReport(days, running, accepted)


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).date().isoformat()


def _usd(spent: Spent) -> dict[str, float]:
    return {
        "spent_usd": spent_usd(spent),
        "machine_usd": spent.machine_usd,
        "egress_usd": spent.egress_usd,
        "forecast_usd": spent.forecast_usd,
    }
