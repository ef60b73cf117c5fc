"""Rows of the run's story, and log lines, about what the core noticed: few about one thing, and a count of the others.

Each row is durable, and peers decide how often they misbehave: nobody may fill the ledger with what it does wrong.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from coordinator.ledger.store import RunStore

ROWS_EACH = 5  # about one kind and subject in an interval
INTERVAL_S = 60.0
SUBJECTS_KEPT = 4096
#: What peers can cause as often as they like.
REPEATED = frozenset({"penalised", "accusation_ignored", "session_replaced"})

_log = structlog.get_logger()


@dataclass(slots=True)
class _Written:
    since: float
    rows: int = 0
    left_out: int = 0


class EventRows:
    """Writes rows to the ledger, and lines to the log."""

    def __init__(
        self, ledger: RunStore, clock: Callable[[], float], kept: Callable[[asyncio.Future[Any]], None]
    ) -> None:
        """``kept`` is given the ledger's answer to each row."""
        self._ledger = ledger
        self._clock = clock
        self._kept = kept
        self._written: OrderedDict[tuple[str, str], _Written] = OrderedDict()  # longest known first

    def write(self, kind: str, subject: str, detail: str, cause: str) -> None:
        """A row, unless there were enough of its kind about this subject just now."""
        if kind in REPEATED and self._is_enough((kind, subject)):
            return
        _log.info("note", kind=kind, subject=subject, detail=detail)
        self._kept(self._ledger.record_event(kind, subject, detail, cause=cause))

    def _is_enough(self, key: tuple[str, str]) -> bool:
        now = self._clock()
        written = self._written.get(key)
        if written is not None and now - written.since >= INTERVAL_S:
            self._forget(key)
            written = None
        if written is None:
            if len(self._written) >= SUBJECTS_KEPT:
                self._forget(next(iter(self._written)))
            written = self._written[key] = _Written(now)
        if written.rows < ROWS_EACH:
            written.rows += 1
            return False
        written.left_out += 1
        return True

    def tell_left_out(self) -> None:
        """Write down how many rows were left out in intervals that are over; called now and then."""
        now = self._clock()
        for key in [key for key, one in self._written.items() if now - one.since >= INTERVAL_S]:
            self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        (kind, subject), written = key, self._written.pop(key)
        if written.left_out:
            seconds = self._clock() - written.since
            detail = f"{written.left_out} times more in {seconds:.0f} s"
            _log.info("note", kind=kind, subject=subject, detail=detail)
            self._kept(self._ledger.record_event(kind, subject, detail, cause=f"{kind} {subject}"))
