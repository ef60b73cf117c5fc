"""Write the core's notes to the run's event log and to the process log, with a limit on repeated ones.

Each row is a durable write, and peers decide how often they misbehave: no peer may fill the ledger with its mistakes.
So about one kind and subject only ROWS_EACH rows are written in INTERVAL_S seconds, and then a count of the others.

A line of the process log takes 80 us, a quarter of what it costs to take back one of thousands of members after a
restart. So of each kind LINES_EACH lines are written in LINES_INTERVAL_S seconds, and then a count of the others, which
have their rows.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from coordinator.ledger.store import RunStore

ROWS_EACH = 5  # rows about one kind and subject in an interval
INTERVAL_S = 60.0
SUBJECTS_KEPT = 4096
LINES_EACH = 50  # lines of one kind in an interval
LINES_INTERVAL_S = 1.0
#: The kinds that peers can cause as often as they like.
REPEATED = frozenset({"penalised", "accusation_ignored", "session_replaced"})

_log = structlog.get_logger()


@dataclass(slots=True)
class _Written:
    since: float
    count: int = 0
    left_out: int = 0

    def takes(self, most: int) -> bool:
        """Return whether one more may be written; if not, count it as left out."""
        if self.count < most:
            self.count += 1
            return True
        self.left_out += 1
        return False


class EventRows:
    """Writes rows to the ledger and lines to the process log."""

    def __init__(
        self, ledger: RunStore, clock: Callable[[], float], kept: Callable[[asyncio.Future[Any]], None]
    ) -> None:
        """``kept`` receives the ledger's future for each row."""
        self._ledger = ledger
        self._clock = clock
        self._kept = kept
        self._written: OrderedDict[tuple[str, str], _Written] = OrderedDict()  # oldest first
        self._lines: dict[str, _Written] = {}  # by kind

    def write(self, kind: str, subject: str, detail: str, cause: str) -> None:
        """Write a row, unless there were ROWS_EACH of its kind about this subject in the interval."""
        if kind in REPEATED and self._limit_reached((kind, subject)):
            return
        if self._may_log(kind):
            _log.info("note", kind=kind, subject=subject, detail=detail)
        self._kept(self._ledger.record_event(kind, subject, detail, cause=cause))

    def _may_log(self, kind: str) -> bool:
        now = self._clock()
        lines = self._lines.get(kind)
        if lines is not None and now - lines.since >= LINES_INTERVAL_S:
            self._log_left_out(kind)
            lines = None
        if lines is None:
            lines = self._lines[kind] = _Written(now)
        return lines.takes(LINES_EACH)

    def _log_left_out(self, kind: str) -> None:
        lines = self._lines.pop(kind)
        if lines.left_out:
            _log.info("notes", kind=kind, more=lines.left_out)

    def _limit_reached(self, key: tuple[str, str]) -> bool:
        now = self._clock()
        written = self._written.get(key)
        if written is not None and now - written.since >= INTERVAL_S:
            self._close_interval(key)
            written = None
        if written is None:
            if len(self._written) >= SUBJECTS_KEPT:
                self._close_interval(next(iter(self._written)))
            written = self._written[key] = _Written(now)
        return not written.takes(ROWS_EACH)

    def write_left_out(self) -> None:
        """Write how many rows and lines were left out in intervals that are over; called periodically."""
        now = self._clock()
        for kind in [kind for kind, lines in self._lines.items() if now - lines.since >= LINES_INTERVAL_S]:
            self._log_left_out(kind)
        for key in [key for key, one in self._written.items() if now - one.since >= INTERVAL_S]:
            self._close_interval(key)

    def _close_interval(self, key: tuple[str, str]) -> None:
        (kind, subject), written = key, self._written.pop(key)
        if written.left_out:
            seconds = self._clock() - written.since
            detail = f"{written.left_out} times more in {seconds:.0f} s"
            _log.info("note", kind=kind, subject=subject, detail=detail)
            self._kept(self._ledger.record_event(kind, subject, detail, cause=f"{kind} {subject}"))
