"""Keep the audit log: every act over HTTP, its caller and its outcome, refusals included."""

from __future__ import annotations

import time
from collections.abc import Callable

from pydantic import Field
from typing_extensions import TypedDict

from coordinator.http.requests import READ_DEADLINE_S
from coordinator.http.routes import Answer, Call, Caller, Query, Route
from coordinator.ledger.sql_access import AccessStore, AuditRow
from rollcast.runtime.waits import deadline

DONE = "done"
TEXT_LENGTH_MAX = 65_536  # room for a whole body: thousands of peers may be drained at once
#: Strangers can be refused as often as they like, and each row is a durable write: further ones are only counted.
REFUSALS_PER_HOUR = 120
LEDGER_DEADLINE_S = 30.0  # to store a row


class AuditLog:
    """Writes and reads rows of the audit log."""

    def __init__(self, store: AccessStore, unix_clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._unix_clock = unix_clock
        self._hour = -1
        self._refusals = 0  # in this hour

    async def done(self, caller: Caller, act: str, subject: str, detail: str, outcome: str = DONE) -> None:
        """Record an act; return once the row is durable.

        Raises:
            StoreError, WaitTimedOut: it cannot be stored.
        """
        await self._write(caller, act, subject, detail, outcome)

    async def refused(self, caller: Caller, act: str, subject: str, why: str) -> None:
        """Record a refused act as ``done`` does; beyond REFUSALS_PER_HOUR refusals are only counted."""
        hour = int(self._unix_clock() // 3600.0)
        left_out = 0
        if hour != self._hour:
            left_out, self._hour, self._refusals = max(0, self._refusals - REFUSALS_PER_HOUR), hour, 0
        self._refusals += 1
        if self._refusals > REFUSALS_PER_HOUR:
            return
        detail = f"and {left_out} earlier refusals that were not recorded" if left_out else ""
        await self._write(caller, act, subject, detail, why)

    async def rows(self, before: int | None, limit: int) -> list[tuple[int, AuditRow]]:
        """Return the newest rows with numbers below ``before`` (None: all), newest first.

        Raises:
            StoreError, WaitTimedOut: they cannot be read.
        """
        async with deadline(READ_DEADLINE_S, "the ledger to read the audit log"):
            return await self._store.audit_rows(before, limit)

    async def _write(self, caller: Caller, act: str, subject: str, detail: str, outcome: str) -> None:
        texts = [text[:TEXT_LENGTH_MAX] for text in (act, subject, detail, outcome)]
        row = AuditRow(self._unix_clock(), caller.who, caller.access, *texts)
        async with deadline(LEDGER_DEADLINE_S, "the ledger to store a row of the audit log"):
            await self._store.record_audit(row)


class AuditQuery(Query):
    """Range of the rows to return."""

    before: int | None = Field(None, ge=1, le=2**62)
    """Return only rows with a smaller number: the last one of the page before."""
    limit: int = Field(100, ge=1, le=500)


class AuditAnswerRow(TypedDict):
    id: int
    at_unix_s: float
    who: str
    access: str
    act: str
    subject: str
    detail: str
    outcome: str


class AuditAnswer(TypedDict):
    rows: list[AuditAnswerRow]


def audit_routes(log: AuditLog) -> list[Route]:
    """Return the route that reads the log."""

    async def read(call: Call) -> Answer:
        rows = await log.rows(call.query.before, call.query.limit)
        return {
            "rows": [
                {
                    "id": number,
                    "at_unix_s": row.at_unix_s,
                    "who": row.who,
                    "access": row.access,
                    "act": row.act,
                    "subject": row.subject,
                    "detail": row.detail,
                    "outcome": row.outcome,
                }
                for number, row in rows
            ]
        }

    return [
        Route(
            "GET",
            "/api/v1/audit",
            "viewer",
            read,
            "Return the acts over this API, newest first, refusals included.",
            query=AuditQuery,
            answer=AuditAnswer,
        )
    ]
