from __future__ import annotations

from datetime import date

import pytest

from peer.limits.quota import MonthUse, Quota

DAY = date(2026, 11, 20)


def test_traffic_counts_until_the_quota_is_spent() -> None:
    quota = Quota(upload_bytes=100, download_bytes=1000)
    quota.moved(sent_bytes=99, received_bytes=1000, today=DAY)
    assert not quota.upload_spent(DAY)
    assert quota.download_spent(DAY)
    quota.moved(sent_bytes=1, received_bytes=0, today=DAY)
    assert quota.upload_spent(DAY)


def test_without_a_quota_nothing_is_ever_spent() -> None:
    quota = Quota()
    quota.moved(sent_bytes=10**15, received_bytes=10**15, today=DAY)
    assert not quota.upload_spent(DAY)
    assert not quota.download_spent(DAY)


def test_counting_begins_anew_on_the_day_of_the_bill() -> None:
    quota = Quota(upload_bytes=100, reset_day=15)
    quota.moved(sent_bytes=100, received_bytes=0, today=date(2026, 12, 14))
    assert quota.upload_spent(date(2026, 12, 14))
    assert quota.use.month == "2026-11"
    assert not quota.upload_spent(date(2026, 12, 15))
    assert quota.resets_on(date(2026, 12, 14)) == date(2026, 12, 15)
    assert quota.resets_on(date(2026, 12, 15)) == date(2027, 1, 15)


def test_a_restart_continues_the_count() -> None:
    quota = Quota(upload_bytes=100, use=MonthUse("2026-11", 60, 7))
    quota.moved(sent_bytes=40, received_bytes=1, today=DAY)
    assert quota.upload_spent(DAY)
    assert quota.use == MonthUse("2026-11", 100, 8)


def test_a_clock_set_back_does_not_renew_the_quota() -> None:
    quota = Quota(upload_bytes=100)
    quota.moved(sent_bytes=100, received_bytes=0, today=DAY)
    assert quota.upload_spent(date(2026, 10, 1))


def test_a_clock_that_was_years_ahead_neither_renews_nor_keeps_a_spent_quota() -> None:
    quota = Quota(upload_bytes=100)
    quota.moved(sent_bytes=100, received_bytes=1, today=DAY)
    quota.moved(sent_bytes=5, received_bytes=0, today=date(2036, 2, 1))
    quota = Quota(upload_bytes=100, use=quota.use)
    quota.moved(sent_bytes=1, received_bytes=1, today=DAY)
    assert (quota.use.sent_bytes, quota.use.received_bytes) == (101, 2)
    quota.moved(sent_bytes=7, received_bytes=0, today=date(2026, 12, 1))
    assert (quota.use.month, quota.use.sent_bytes) == ("2026-12", 7)


def test_a_month_of_which_nothing_is_known_takes_over_the_count_of_a_clock_that_was_ahead() -> None:
    quota = Quota(upload_bytes=100)
    quota.moved(sent_bytes=100, received_bytes=0, today=date(2036, 2, 1))
    quota.moved(sent_bytes=1, received_bytes=0, today=DAY)
    assert quota.use.sent_bytes == 101
    assert not quota.upload_spent(date(2026, 12, 1))


def test_few_other_months_are_kept() -> None:
    quota = Quota()
    for month in range(1, 13):
        quota.moved(sent_bytes=month, received_bytes=0, today=date(2026, month, 1))
    assert [other.sent_bytes for other in quota.use.others] == [11, 10, 9]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="reset_day"):
        Quota(reset_day=31)
    with pytest.raises(ValueError, match="negative"):
        Quota().moved(sent_bytes=-1, received_bytes=0, today=DAY)
