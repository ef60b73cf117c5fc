"""Store access tokens and the audit log in the ledger's tables."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from coordinator.ledger.sql import SqlConnection

_TOKEN = "token_id, token_hash, name, access, made_unix_s, expires_unix_s, revoked_unix_s"
_ID_MAX = 1 << 62
_AUDIT = "at_unix_s, who, access, act, subject, detail, outcome"


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token without its secret.

    Args:
        access: viewer, operator or admin.
        expires_unix_s, revoked_unix_s: Unix time; None: the token never expires, and is not revoked.
    """

    token_id: int
    token_hash: bytes
    name: str
    access: str
    made_unix_s: float
    expires_unix_s: float | None
    revoked_unix_s: float | None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One act, or one that was refused.

    Args:
        who: name of the token; empty for strangers.
        outcome: "done", or the code and reason of the refusal.
    """

    at_unix_s: float
    who: str
    access: str
    act: str
    subject: str
    detail: str
    outcome: str


class AccessStore(Protocol):
    """Stores tokens and the audit log durably. Each method may raise StoreError."""

    def create_token(
        self, token_hash: bytes, name: str, access: str, *, made_unix_s: float, expires_unix_s: float | None
    ) -> asyncio.Future[StoredToken]:
        """Store a new token; fails with StoreError if a valid one has that name."""

    def revoke_token(self, token_id: int, revoked_unix_s: float) -> asyncio.Future[bool]:
        """Revoke a token; returns False if it is unknown or revoked already."""

    def tokens(self) -> asyncio.Future[list[StoredToken]]:
        """Return every token ever made, oldest first."""

    def record_audit(self, row: AuditRow) -> asyncio.Future[int]:
        """Store a row and return its number."""

    def audit_rows(self, before: int | None, limit: int) -> asyncio.Future[list[tuple[int, AuditRow]]]:
        """Return the newest rows with a number below ``before`` (None: all), newest first."""


def insert_token(
    connection: SqlConnection,
    token_hash: bytes,
    name: str,
    access: str,
    made_unix_s: float,
    expires_unix_s: float | None,
) -> StoredToken:
    row = connection.execute(
        "INSERT INTO tokens (token_hash, name, access, made_unix_s, expires_unix_s) VALUES (?, ?, ?, ?, ?)"
        f" RETURNING {_TOKEN}",
        (token_hash, name, access, made_unix_s, expires_unix_s),
    ).fetchone()
    return StoredToken(*row)


def revoke_token(connection: SqlConnection, token_id: int, revoked_unix_s: float) -> bool:
    changed = connection.execute(
        "UPDATE tokens SET revoked_unix_s = ? WHERE token_id = ? AND revoked_unix_s IS NULL",
        (revoked_unix_s, token_id),
    )
    return changed.rowcount == 1


def select_tokens(connection: SqlConnection) -> list[StoredToken]:
    return [StoredToken(*row) for row in connection.execute(f"SELECT {_TOKEN} FROM tokens ORDER BY token_id")]


def insert_audit(connection: SqlConnection, row: AuditRow) -> int:
    (number,) = connection.execute(
        f"INSERT INTO audit ({_AUDIT}) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING audit_id",
        (row.at_unix_s, row.who, row.access, row.act, row.subject, row.detail, row.outcome),
    ).fetchone()
    return int(number)


def select_audit(connection: SqlConnection, before: int | None, limit: int) -> list[tuple[int, AuditRow]]:
    rows = connection.execute(
        f"SELECT audit_id, {_AUDIT} FROM audit WHERE audit_id < ? ORDER BY audit_id DESC LIMIT ?",
        (_ID_MAX if before is None else before, limit),
    )
    return [(number, AuditRow(*values)) for number, *values in rows]
