"""Keep a fleet within its limits: count what was spent and committed, refuse starts, and name the workers to stop.

The limit on the total is enforced ahead of time. At every check, the cost of all running workers must still be within
the limit if each of them runs until the next check and then takes its whole tail to stop, minimum billing and the
greatest egress included. Workers beyond that are stopped at this check; the previous check reserved the money for it.
So spending never exceeds the limit as long as checks are at most ``look_every_s`` apart, a stop takes no longer than
the worker's tail, and no worker sends more than its cap. The death of the coordinator counts as a stop too: workers
end by themselves without it, within their tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capacity.fleet.billing import Terms
from capacity.model.units import SECONDS_PER_HOUR

_ROUNDING = 1e-9  # relative error of sums of prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a fleet's cost.

    Args:
        usd_per_hour_max, usd_max: None: no limit.
        look_every_s: longest time between two checks, in seconds.
    """

    usd_per_hour_max: float | None = None
    usd_max: float | None = None
    look_every_s: float = 1.0


@dataclass(slots=True)
class Account:
    """One worker's account. Times are in seconds since the epoch.

    Args:
        sent_bytes, sent_at: bytes sent so far and the time, as of its last report.
        stop_wanted_at: when its stop was decided; None while it may continue.
        spent_usd: machine and egress, as of the last ``Budget.settle``.
    """

    provider: str
    terms: Terms
    opened_at: float
    sent_at: float
    sent_bytes: int = 0
    stop_wanted_at: float | None = None
    machine_usd: float = 0.0
    egress_usd: float = 0.0

    def settle(self, now: float) -> None:
        """Count the costs up to now."""
        self.machine_usd = self.terms.machine_usd(now - self.opened_at)
        self.egress_usd = self.terms.egress_usd(self.sent_bytes)

    def worst_usd(self, now: float, look_every_s: float) -> float:
        """Return what a worker will have cost when it has ended, if it is stopped no later than at the next check."""
        stopped_at = now + look_every_s if self.stop_wanted_at is None else self.stop_wanted_at
        ends_at = max(now, stopped_at + self.terms.tail_s)
        unreported_h = max(0.0, ends_at - self.sent_at) / SECONDS_PER_HOUR
        egress = self.terms.egress_usd(self.sent_bytes) + self.terms.egress_usd_per_hour_max * unreported_h
        return self.terms.machine_usd(ends_at - self.opened_at) + egress


class Budget:
    """Accounts of running workers, and the cost of ended ones. ``now`` never falls."""

    def __init__(self, limits: Limits, *, closed_usd: float = 0.0) -> None:
        """Begin without open accounts; ``closed_usd`` is the cost of workers that ended earlier."""
        self.limits = limits
        self._closed_usd = closed_usd
        self._open: dict[str, Account] = {}

    # ---------------------------------------------------------------- questions

    @property
    def accounts(self) -> Mapping[str, Account]:
        """Accounts by key, in order of opening."""
        return self._open

    @property
    def committed_usd_per_hour(self) -> float:
        """The most that running workers cost in an hour."""
        return sum(account.terms.committed_usd_per_hour for account in self._open.values())

    @property
    def usd_per_hour(self) -> float:
        """Price of the running machines."""
        return sum(account.terms.usd_per_hour for account in self._open.values())

    @property
    def spent_usd(self) -> float:
        """US dollars spent as of the last ``settle``."""
        return self._closed_usd + sum(one.machine_usd + one.egress_usd for one in self._open.values())

    def worst_usd(self, now: float) -> float:
        """Return what will have been spent if all workers are stopped at the next check."""
        every_s = self.limits.look_every_s
        return self._closed_usd + sum(account.worst_usd(now, every_s) for account in self._open.values())

    def refusal(self, terms: Terms, now: float) -> str:
        """Return in words why a worker at these terms must not be started; empty if it may."""
        hourly, limit = self.committed_usd_per_hour + terms.committed_usd_per_hour, self.limits.usd_per_hour_max
        if limit is not None and hourly > limit:
            return f"{hourly:.4g} $/h would be committed; the limit is {limit:.4g} $/h"
        total, limit = self.worst_usd(now) + _first_usd(terms, now, self.limits.look_every_s), self.limits.usd_max
        if limit is not None and total > limit:
            return f"{total:.4g} $ would be spent at least; the limit is {limit:.4g} $"
        return ""

    def overdue(self, now: float) -> dict[str, str]:
        """Return the workers to stop at this check with the reason, the dearest first; the rest fits into the limits.

        The hourly limit is exceeded only after it was lowered, because no start exceeds it.
        """
        hourly, total = self.limits.usd_per_hour_max, self.limits.usd_max
        every_s, worst = self.limits.look_every_s, self.worst_usd(now)
        running = sorted(self._running(), key=lambda item: -item[1].terms.committed_usd_per_hour)
        committed = sum(account.terms.committed_usd_per_hour for _, account in running)
        found: dict[str, str] = {}
        for key, account in running:
            if total is not None and worst > total:
                found[key] = f"the budget of {total:.4g} $ is almost spent"
            elif hourly is not None and committed > hourly * (1.0 + _ROUNDING):
                found[key] = f"the limit is {hourly:.4g} $/h"
            else:
                break
            stopped = Account(account.provider, account.terms, account.opened_at, account.sent_at, account.sent_bytes)
            stopped.stop_wanted_at = now
            worst += stopped.worst_usd(now, every_s) - account.worst_usd(now, every_s)
            committed -= account.terms.committed_usd_per_hour
        return found

    def _running(self) -> Iterable[tuple[str, Account]]:
        return [(key, account) for key, account in self._open.items() if account.stop_wanted_at is None]

    # ---------------------------------------------------------------- what happens

    def open(self, key: str, provider: str, terms: Terms, opened_at: float, *, sent_bytes: int = 0) -> Account:
        """Open an account whose clock runs from ``opened_at``: when the start was decided, not when the worker ran.

        Raises:
            ValueError: the account is open already.
        """
        if key in self._open:
            raise ValueError(f"the account of {key} is open already")
        account = Account(provider, terms, opened_at, opened_at, sent_bytes)
        self._open[key] = account
        account.settle(opened_at)
        return account

    def sent(self, key: str, sent_bytes: int, now: float) -> None:
        """Record the bytes that a worker has sent since its start, by its own count."""
        account = self._open[key]
        account.sent_bytes, account.sent_at = max(account.sent_bytes, sent_bytes), now

    def stop_wanted(self, key: str, now: float) -> None:
        """Record that the worker is being stopped from now on."""
        account = self._open[key]
        if account.stop_wanted_at is None:
            account.stop_wanted_at = now

    def settle(self, now: float) -> None:
        """Count the costs of all accounts up to now."""
        for account in self._open.values():
            account.settle(now)

    def close(self, key: str, ended_at: float) -> Account:
        """Close the account of a worker that has ended, and return it."""
        account = self._open.pop(key)
        account.settle(ended_at)
        self._closed_usd += account.machine_usd + account.egress_usd
        return account


def _first_usd(terms: Terms, now: float, look_every_s: float) -> float:
    """Return the least cost of a worker that is started now: until the next check and its tail, or its minimum."""
    return Account("", terms, now, now).worst_usd(now, look_every_s)
