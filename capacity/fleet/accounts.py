"""Keep the fleet's money: the budget that limits it, and the sums by provider that are recorded."""

from __future__ import annotations

from collections.abc import Mapping

from capacity.fleet.billing import Terms
from capacity.fleet.budget import Budget, Limits
from capacity.fleet.events import RecordClosed, RecordMark, RecordOpened, Spent
from capacity.fleet.spending import Spending
from capacity.fleet.state import OpenWorker, Restored
from capacity.providers.base import WorkerTag


class FleetAccounts:
    """The fleet's accounts; opening and closing one returns what must be recorded of it."""

    def __init__(self, limits: Limits, restored: Restored, now: float) -> None:
        self._spending = Spending(restored.closed, restored.marked)
        self.budget = Budget(limits, closed_usd=self._spending.closed_usd)
        self._next_mark = now + limits.look_every_s
        self._left_at = restored.marked_at
        self._expected: dict[str, tuple[str, float]] = {}
        self._now = now
        self._has_news = False  # whether an account was closed since the last mark
        for one in restored.opened:
            self.take_up(one)

    def take_up(self, one: OpenWorker) -> None:
        """Take over an account that is recorded already."""
        self.budget.open(str(one.tag), one.provider, one.terms, one.opened_at, sent_bytes=one.sent_bytes)

    def expect(self, usd_per_hour: Mapping[str, tuple[str, float]]) -> None:
        """Set each worker's provider and expected cost from now on."""
        self._expected = dict(usd_per_hour)

    def pass_time(self, now: float) -> None:
        """Count the costs up to now."""
        for provider, usd_per_hour in self._expected.values():
            self._spending.expect(provider, usd_per_hour, now - self._now)
        self._now = now
        self.budget.settle(now)

    def open(self, tag: WorkerTag, provider: str, terms: Terms, opened_at: float) -> RecordOpened:
        """Open the account of a worker whose start was decided."""
        self.budget.open(str(tag), provider, terms, opened_at)
        return RecordOpened(tag, provider, terms, opened_at)

    def close(self, tag: WorkerTag, ended_at: float) -> RecordClosed:
        """Close the account of a worker of which nothing runs any more."""
        account = self.budget.close(str(tag), ended_at)
        self._spending.ended(account)
        self._has_news = True
        return RecordClosed(tag, account.provider, ended_at, account.machine_usd, account.egress_usd)

    def missed_at(self, tag: WorkerTag, now: float) -> float:
        """Return when a worker of an earlier coordinator that no list shows must have ended at the latest."""
        account = self.budget.accounts[str(tag)]
        ended_at = min(now, self._left_at + self.budget.limits.look_every_s + account.terms.tail_s)
        return max(account.opened_at, ended_at)

    def mark_is_due(self, now: float) -> bool:
        """Return whether the next mark is due and anything was spent since the last one."""
        return now >= self._next_mark and (self._has_news or bool(self.budget.accounts or self._expected))

    def mark(self, now: float) -> RecordMark:
        """Return the record of everything spent since the last mark."""
        self._next_mark = now + self.budget.limits.look_every_s
        self._has_news = False
        accounts = self.budget.accounts
        sent = {key: one.sent_bytes for key, one in accounts.items() if one.sent_bytes}
        return RecordMark(now, self._spending.mark(accounts.values()), sent)

    def spent(self) -> dict[str, Spent]:
        """Return the costs by provider since the run began."""
        return self._spending.by_provider(self.budget.accounts.values())
