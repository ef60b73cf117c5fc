"""Test what a worker costs, and the budget's one promise: spending never exceeds the limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.fleet.billing import Terms
from capacity.fleet.budget import Budget, Limits

LOOK_S = 5.0

PRICES = st.builds(
    Terms,
    usd_per_hour=st.floats(0.0, 40.0),
    egress_usd_per_gb=st.sampled_from([0.0, 0.01, 0.12]),
    upload_bytes_per_second=st.sampled_from([1e5, 1e8]),
    minimum_s=st.sampled_from([0.0, 60.0, 3600.0]),
    granularity_s=st.sampled_from([1.0, 60.0, 3600.0]),
    tail_s=st.floats(0.0, 300.0),
)

WAITS = st.floats(0.01, LOOK_S)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.floats(0.01, 50.0), st.floats(1.0, 100.0))
def test_spent_never_exceeds_the_limits(data: st.DataObject, usd_max: float, usd_per_hour_max: float) -> None:
    """Start whenever it is allowed; workers send all they may, and stops take their whole tail."""
    limits = Limits(usd_per_hour_max=usd_per_hour_max, usd_max=usd_max, look_every_s=LOOK_S)
    budget, now, number = Budget(limits), 1000.0, 0
    sent: dict[str, float] = {}
    ends: dict[str, float] = {}
    for _ in range(data.draw(st.integers(1, 60))):
        passed_s = data.draw(WAITS)
        for key, account in budget.accounts.items():
            until = min(now + passed_s, ends.get(key, now + passed_s))
            sent[key] += max(0.0, until - now) * account.terms.upload_bytes_per_second
        now += passed_s
        for key in [key for key, end in ends.items() if end <= now]:
            budget.sent(key, int(sent[key]), now)
            budget.close(key, ends.pop(key))
        for key in data.draw(st.sets(st.sampled_from(sorted(budget.accounts)))) if budget.accounts else ():
            budget.sent(key, int(sent[key]), now)
        budget.settle(now)
        assert budget.spent_usd <= usd_max * (1 + 1e-9)
        assert budget.worst_usd(now) >= budget.spent_usd * (1 - 1e-9)
        for key in budget.overdue(now):
            budget.stop_wanted(key, now)
            ends[key] = now + budget.accounts[key].terms.tail_s
        assert budget.worst_usd(now) <= usd_max * (1 + 1e-9)
        terms = data.draw(PRICES)
        if not budget.refusal(terms, now):
            number += 1
            budget.open(f"w{number}", "p", terms, now)
            sent[f"w{number}"] = 0.0
        assert budget.committed_usd_per_hour <= usd_per_hour_max * (1 + 1e-9)


def test_a_start_is_refused_whose_minimum_does_not_fit() -> None:
    budget = Budget(Limits(usd_max=1.0, look_every_s=1.0))
    assert budget.refusal(Terms(usd_per_hour=1.2, minimum_s=3600.0), 0.0).startswith("1.2 $ would be spent")
    assert budget.refusal(Terms(usd_per_hour=1.2), 0.0) == ""


def test_a_start_is_refused_that_would_exceed_the_hourly_limit() -> None:
    budget = Budget(Limits(usd_per_hour_max=2.0))
    budget.open("a", "p", Terms(usd_per_hour=1.5), 0.0)
    assert budget.refusal(Terms(usd_per_hour=0.6), 0.0) == "2.1 $/h would be committed; the limit is 2 $/h"
    assert budget.refusal(Terms(usd_per_hour=0.5), 0.0) == ""


def test_the_dearest_are_stopped_first_and_the_rest_runs_on() -> None:
    budget = Budget(Limits(usd_max=1.0, look_every_s=1.0))
    budget.open("dear", "p", Terms(usd_per_hour=3.6, tail_s=100.0), 0.0)
    budget.open("cheap", "p", Terms(usd_per_hour=0.36, tail_s=100.0), 0.0)
    budget.settle(800.0)
    assert not budget.overdue(800.0)
    assert list(budget.overdue(809.0)) == ["dear"]
    budget.stop_wanted("dear", 809.0)
    assert not budget.overdue(809.0)
    assert budget.close("dear", 909.0).machine_usd == pytest.approx(0.909)


def test_what_was_spent_before_counts() -> None:
    budget = Budget(Limits(usd_max=1.0), closed_usd=0.999)
    assert budget.refusal(Terms(usd_per_hour=10.0), 0.0)
    assert budget.spent_usd == 0.999


def test_an_account_opens_once() -> None:
    budget = Budget(Limits())
    budget.open("a", "p", Terms(usd_per_hour=1.0), 0.0)
    with pytest.raises(ValueError, match="open already"):
        budget.open("a", "p", Terms(usd_per_hour=1.0), 0.0)


def test_a_tighter_hourly_limit_stops_the_dearest_first() -> None:
    budget = Budget(Limits(usd_per_hour_max=6.0))
    for number, price in enumerate((1.0, 2.0, 3.0)):
        budget.open(str(number), "p", Terms(usd_per_hour=price), 0.0)
    assert budget.overdue(10.0) == {}
    budget.limits = Limits(usd_per_hour_max=3.5)
    assert budget.overdue(10.0) == {"2": "the limit is 3.5 $/h"}
    budget.stop_wanted("2", 10.0)
    assert budget.overdue(20.0) == {}  # it is being stopped


@pytest.mark.parametrize(
    ("terms", "seconds", "usd"),
    [
        (Terms(usd_per_hour=3.6), 0.0, 0.0),
        (Terms(usd_per_hour=3.6), 10.0, 0.01),
        (Terms(usd_per_hour=3.6, granularity_s=60.0), 61.0, 0.12),
        (Terms(usd_per_hour=3.6, granularity_s=3600.0), 1.0, 3.6),
        (Terms(usd_per_hour=3.6, minimum_s=600.0), 0.0, 0.6),
        (Terms(usd_per_hour=3.6, minimum_s=600.0), 700.0, 0.7),
    ],
)
def test_machines_are_billed_in_whole_units_and_at_least_the_minimum(terms: Terms, seconds: float, usd: float) -> None:
    assert terms.machine_usd(seconds) == pytest.approx(usd)


def test_egress_is_bounded_by_the_cap() -> None:
    terms = Terms(usd_per_hour=0.4, egress_usd_per_gb=0.09, upload_bytes_per_second=1e6)
    assert terms.egress_usd(1e9) == pytest.approx(0.09)
    assert terms.egress_usd_per_hour_max == pytest.approx(0.324)
    assert terms.committed_usd_per_hour == pytest.approx(0.724)
