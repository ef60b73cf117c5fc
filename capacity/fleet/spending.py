"""Spending by provider: of workers that ended, of those that run, what marks hold of it, and what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capacity.fleet.budget import Account
from capacity.fleet.events import Spent
from capacity.model.units import SECONDS_PER_HOUR

NOTHING = Spent(0.0, 0.0, 0.0)


def plus(one: Spent, other: Spent) -> Spent:
    """Their sum."""
    return Spent(
        one.machine_usd + other.machine_usd, one.egress_usd + other.egress_usd, one.forecast_usd + other.forecast_usd
    )


def minus(one: Spent, other: Spent) -> Spent:
    """Their difference."""
    return Spent(
        one.machine_usd - other.machine_usd, one.egress_usd - other.egress_usd, one.forecast_usd - other.forecast_usd
    )


class Spending:
    """Sums in US dollars. What is not in a mark yet is the difference of what is known and what is marked."""

    def __init__(self, closed: Mapping[str, Spent], marked: Mapping[str, Spent]) -> None:
        self._closed = dict(closed)
        self._marked = dict(marked)
        self._forecast = {provider: spent.forecast_usd for provider, spent in marked.items()}

    @property
    def closed_usd(self) -> float:
        """Of workers that ended."""
        return sum(spent.machine_usd + spent.egress_usd for spent in self._closed.values())

    def ended(self, account: Account) -> None:
        """A worker has ended; this is its account."""
        spent = Spent(account.machine_usd, account.egress_usd, 0.0)
        self._closed[account.provider] = plus(self._closed.get(account.provider, NOTHING), spent)

    def expect(self, provider: str, usd_per_hour: float, seconds: float) -> None:
        """So long a worker was wanted that was expected to cost so much."""
        usd = usd_per_hour * seconds / SECONDS_PER_HOUR
        self._forecast[provider] = self._forecast.get(provider, 0.0) + usd

    def by_provider(self, open_accounts: Iterable[Account]) -> dict[str, Spent]:
        """Everything, as of the last time that the accounts were settled."""
        sums = {name: Spent(one.machine_usd, one.egress_usd, 0.0) for name, one in self._closed.items()}
        for account in open_accounts:
            spent = Spent(account.machine_usd, account.egress_usd, 0.0)
            sums[account.provider] = plus(sums.get(account.provider, NOTHING), spent)
        for provider, usd in self._forecast.items():
            sums[provider] = plus(sums.get(provider, NOTHING), Spent(0.0, 0.0, usd))
        return sums

    def mark(self, open_accounts: Iterable[Account]) -> dict[str, Spent]:
        """What has come since the last mark, by provider; it counts as marked from now on."""
        sums = self.by_provider(open_accounts)
        rise = {name: minus(spent, self._marked.get(name, NOTHING)) for name, spent in sums.items()}
        self._marked = sums
        return {name: spent for name, spent in rise.items() if spent != NOTHING}
