"""Weekly windows of local time in which a machine may be used. Pure.

mon-fri 22:00-07:00     the nights that begin on a working day
sat,sun                 whole days
daily 01:00-05:30       every day
12:00-13:00             every day
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES = 24 * 60
_WEEK_MINUTES = 7 * _DAY_MINUTES
_TIMES = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
_FORM = "write days, times or both: `mon-fri 22:00-07:00`, `sat,sun`, `01:00-05:30`"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Windows [begin, end) in minutes since Monday 00:00, sorted and disjoint; no window: always open."""

    windows: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Schedule:
        """Parse windows; an empty list means always.

        Raises:
            ValueError: a line is not a window; the message quotes it and shows the form.
        """
        minutes = [window for line in lines for window in _windows(line)]
        return cls(tuple(_merged(minutes)))

    def is_open(self, local: datetime) -> bool:
        """Return whether the machine may be used at this local time."""
        minute = _minute(local)
        return not self.windows or any(begin <= minute < end for begin, end in self.windows)

    def minutes_until_change(self, local: datetime) -> int | None:
        """Return the minutes, by the local clock, until the schedule opens or closes; None: it never does."""
        if not self.windows or self.windows == ((0, _WEEK_MINUTES),):
            return None
        minute, is_open = _minute(local), self.is_open(local)
        edges = {(end if is_open else begin) % _WEEK_MINUTES for begin, end in self.windows}
        # Midnight between Sunday and Monday is no edge where a window continues across it.
        if self.windows[0][0] == 0 and self.windows[-1][1] == _WEEK_MINUTES:
            edges.discard(0)
        return min((edge - minute) % _WEEK_MINUTES or _WEEK_MINUTES for edge in edges)

    def in_words(self) -> str:
        """Return the windows as text, such as `Mon 22:00 to Tue 07:00, ...`."""
        if not self.windows:
            return "always"
        return ", ".join(f"{_named(begin)} to {_named(end)}" for begin, end in self.windows)


def _minute(local: datetime) -> int:
    return local.weekday() * _DAY_MINUTES + local.hour * 60 + local.minute


def _named(minute: int) -> str:
    day, rest = divmod(minute % _WEEK_MINUTES, _DAY_MINUTES)
    return f"{_DAYS[day].capitalize()} {rest // 60:02d}:{rest % 60:02d}"


def _windows(line: str) -> Iterable[tuple[int, int]]:
    words = line.lower().split()
    if not words or len(words) > 2:
        raise ValueError(f"{line!r} is no window of time: {_FORM}")
    times = words.pop() if _TIMES.fullmatch(words[-1]) else "00:00-24:00"
    days = _days(words[0], line) if words else range(7)
    begin, end = _times(times, line)
    if end <= begin:
        end += _DAY_MINUTES  # into the next day
    for day in days:
        first, last = day * _DAY_MINUTES + begin, day * _DAY_MINUTES + end
        yield first, min(last, _WEEK_MINUTES)
        if last > _WEEK_MINUTES:
            yield 0, last - _WEEK_MINUTES


def _times(text: str, line: str) -> tuple[int, int]:
    match = _TIMES.fullmatch(text)
    assert match is not None
    hours_1, minutes_1, hours_2, minutes_2 = (int(part) for part in match.groups())
    begin, end = hours_1 * 60 + minutes_1, hours_2 * 60 + minutes_2
    if minutes_1 > 59 or minutes_2 > 59 or begin >= _DAY_MINUTES or end > _DAY_MINUTES:
        raise ValueError(f"{line!r}: times go from 00:00 to 24:00")
    return begin, end


def _days(text: str, line: str) -> list[int]:
    if text == "daily":
        return list(range(7))
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in _DAYS or (dash and last not in _DAYS):
            raise ValueError(f"{line!r}: {part!r} is no day ({', '.join(_DAYS)}, daily); {_FORM}")
        begin = _DAYS.index(first)
        length = (_DAYS.index(last) - begin) % 7 + 1 if dash else 1
        found += [(begin + offset) % 7 for offset in range(length)]
    return found


def _merged(windows: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    begin = end = -1
    for first, last in sorted(windows):
        if first > end:
            if end >= 0:
                yield begin, end
            begin, end = first, last
        end = max(end, last)
    if end >= 0:
        yield begin, end
