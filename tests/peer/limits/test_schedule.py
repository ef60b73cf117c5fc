from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.limits.schedule import Schedule

MONDAY = datetime(2026, 11, 23)  # 00:00


def at(day: int, hour: int, minute: int = 0) -> datetime:
    return MONDAY + timedelta(days=day, hours=hour, minutes=minute)


def test_without_windows_it_is_always_open() -> None:
    schedule = Schedule.parse([])
    assert schedule.is_open(at(3, 12))
    assert schedule.minutes_until_change(at(3, 12)) is None
    assert schedule.in_words() == "always"


def test_a_night_that_begins_on_friday_ends_on_saturday() -> None:
    schedule = Schedule.parse(["mon-fri 22:00-07:00"])
    assert schedule.is_open(at(4, 23))
    assert schedule.is_open(at(5, 6, 59))
    assert not schedule.is_open(at(5, 7))
    assert not schedule.is_open(at(5, 23))
    assert not schedule.is_open(at(0, 6)), "Sunday is no working day, so its night is not open"
    assert schedule.minutes_until_change(at(5, 7)) == (2 * 24 + 15) * 60


def test_the_week_wraps() -> None:
    schedule = Schedule.parse(["sun 20:00-06:00"])
    assert schedule.is_open(at(0, 5))
    assert schedule.is_open(at(6, 20))
    assert schedule.minutes_until_change(at(6, 23)) == 7 * 60, "midnight is no edge"
    assert schedule.minutes_until_change(at(0, 1)) == 5 * 60


def test_days_alone_are_whole_days_and_overlaps_merge() -> None:
    schedule = Schedule.parse(["Sat,sun", "SUN 10:00-12:00", "fri-mon 23:00-24:00"])
    assert schedule.in_words() == "Mon 23:00 to Tue 00:00, Fri 23:00 to Mon 00:00"


def test_every_day_around_the_clock_never_changes() -> None:
    assert Schedule.parse(["daily"]).minutes_until_change(at(2, 2)) is None


@pytest.mark.parametrize("line", ["", "noon", "mon 25:00-26:00", "mon 10:61-11:00", "mon-", "mon 10:00 11:00", "a b c"])
def test_an_invalid_line_is_quoted(line: str) -> None:
    with pytest.raises(ValueError, match=r"no window|no day|times go"):
        Schedule.parse([line])


@given(
    lines=st.lists(
        st.builds(
            "{} {:02d}:{:02d}-{:02d}:{:02d}".format,
            st.sampled_from(["mon", "tue-thu", "fri-mon", "daily", "sat,sun"]),
            *(st.integers(0, 23), st.integers(0, 59), st.integers(0, 23), st.integers(0, 59)),
        ),
        min_size=1,
        max_size=4,
    ),
    minute=st.integers(0, 7 * 24 * 60 - 1),
)
def test_the_next_change_agrees_with_is_open(lines: list[str], minute: int) -> None:
    schedule, local = Schedule.parse(lines), MONDAY + timedelta(minutes=minute)
    until = schedule.minutes_until_change(local)
    now = schedule.is_open(local)
    if until is None:
        assert all(schedule.is_open(MONDAY + timedelta(minutes=step)) for step in range(0, 7 * 24 * 60, 7))
        return
    assert schedule.is_open(local + timedelta(minutes=until)) is not now
    assert all(schedule.is_open(local + timedelta(minutes=step)) is now for step in range(0, until, 11))
