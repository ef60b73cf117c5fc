"""Sums by provider, and what of them is written down."""

from __future__ import annotations

import pytest

from capacity.fleet.billing import Terms
from capacity.fleet.budget import Account
from capacity.fleet.events import Spent
from capacity.fleet.spending import Spending


def account(provider: str, machine_usd: float, egress_usd: float = 0.0) -> Account:
    return Account(provider, Terms(usd_per_hour=1.0), 0.0, 0.0, machine_usd=machine_usd, egress_usd=egress_usd)


def test_marks_add_up_to_what_was_spent() -> None:
    spending = Spending({}, {})
    runs, other = account("p", 1.0, 0.5), account("q", 2.0)
    spending.expect("p", 3.6, 1000.0)
    marks = [spending.mark([runs, other])]
    assert marks[0] == {"p": Spent(1.0, 0.5, 1.0), "q": Spent(2.0, 0.0, 0.0)}
    assert spending.mark([runs, other]) == {}
    runs.machine_usd = 1.25
    spending.ended(runs)
    marks.append(spending.mark([other]))
    assert marks[1] == {"p": Spent(0.25, 0.0, 0.0)}
    assert spending.closed_usd == pytest.approx(1.75)


def test_what_a_crash_left_unmarked_is_in_the_next_mark() -> None:
    spending = Spending(closed={"p": Spent(1.0, 0.25, 0.0)}, marked={"p": Spent(0.75, 0.25, 4.0)})
    assert spending.mark([]) == {"p": Spent(0.25, 0.0, 0.0)}
    assert spending.by_provider([]) == {"p": Spent(1.0, 0.25, 4.0)}
