"""Sum spending by provider: of ended and running workers, the part recorded in marks, and the forecast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capacity.fleet.budget import Account
from capacity.fleet.events import Spent
from capacity.model.units import SECONDS_PER_HOUR

NOTHING = Spent(0.0, 0.0, 0.0)


def plus(one: Spent, other: Spent) -> Spent:
    """Return the sum of two spendings."""
    return Spent(
        one.machine_usd + other.machine_usd, one.egress_usd + other.egress_usd, one.forecast_usd + other.forecast_usd
    )


def minus(one: Spent, other: Spent) -> Spent:
    """Return the difference of two spendings."""
    return Spent(
        one.machine_usd - other.machine_usd, one.egress_usd - other.egress_usd, one.forecast_usd - other.forecast_usd
    )


class Spending:
    """Spending in US dollars by provider. The next mark holds what was spent beyond the sum of all earlier marks."""

    def __init__(self, closed: Mapping[str, Spent], marked: Mapping[str, Spent]) -> None:
        self._closed = dict(closed)
        self._marked = dict(marked)
        self._forecast = {provider: spent.forecast_usd for provider, spent in marked.items()}

    @property
    def closed_usd(self) -> float:
        """Cost of ended workers over all providers."""
        return sum(spent.machine_usd + spent.egress_usd for spent in self._closed.values())

    def ended(self, account: Account) -> None:
        """Add the account of a worker that has ended."""
        spent = Spent(account.machine_usd, account.egress_usd, 0.0)
        self._closed[account.provider] = plus(self._closed.get(account.provider, NOTHING), spent)

    def expect(self, provider: str, usd_per_hour: float, seconds: float) -> None:
        """Add to the forecast a worker that was wanted for ``seconds`` at this expected price."""
        usd = usd_per_hour * seconds / SECONDS_PER_HOUR
        self._forecast[provider] = self._forecast.get(provider, 0.0) + usd

    def by_provider(self, open_accounts: Iterable[Account]) -> dict[str, Spent]:
        """Return all spending by provider, as of the last time that the accounts were settled."""
        sums = {name: Spent(one.machine_usd, one.egress_usd, 0.0) for name, one in self._closed.items()}
        for account in open_accounts:
            spent = Spent(account.machine_usd, account.egress_usd, 0.0)
            sums[account.provider] = plus(sums.get(account.provider, NOTHING), spent)
        for provider, usd in self._forecast.items():
            sums[provider] = plus(sums.get(provider, NOTHING), Spent(0.0, 0.0, usd))
        return sums

    def mark(self, open_accounts: Iterable[Account]) -> dict[str, Spent]:
        """Return what was spent since the last mark, by provider; it counts as marked from now on."""
        sums = self.by_provider(open_accounts)
        rise = {name: minus(spent, self._marked.get(name, NOTHING)) for name, spent in sums.items()}
        self._marked = sums
        return {name: spent for name, spent in rise.items() if spent != NOTHING}
