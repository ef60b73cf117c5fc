"""What is written to and read from the ledger's tables of tokens and of the audit log."""

from __future__ import annotations

import sqlite3

from coordinator.ledger.access_rows import AuditRow, StoredToken

_TOKEN = "token_id, token_hash, name, access, made_unix_s, expires_unix_s, revoked_unix_s"
_AUDIT = "at_unix_s, who, access, act, subject, detail, outcome"


def insert_token(
    connection: sqlite3.Connection,
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


def revoke_token(connection: sqlite3.Connection, token_id: int, revoked_unix_s: float) -> bool:
    changed = connection.execute(
        "UPDATE tokens SET revoked_unix_s = ? WHERE token_id = ? AND revoked_unix_s IS NULL",
        (revoked_unix_s, token_id),
    )
    return changed.rowcount == 1


def select_tokens(connection: sqlite3.Connection) -> list[StoredToken]:
    return [StoredToken(*row) for row in connection.execute(f"SELECT {_TOKEN} FROM tokens ORDER BY token_id")]


def insert_audit(connection: sqlite3.Connection, row: AuditRow) -> int:
    (number,) = connection.execute(
        f"INSERT INTO audit ({_AUDIT}) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING audit_id",
        (row.at_unix_s, row.who, row.access, row.act, row.subject, row.detail, row.outcome),
    ).fetchone()
    return int(number)


def select_audit(connection: sqlite3.Connection, before: int | None, limit: int) -> list[tuple[int, AuditRow]]:
    rows = connection.execute(
        f"SELECT audit_id, {_AUDIT} FROM audit WHERE ? IS NULL OR audit_id < ? ORDER BY audit_id DESC LIMIT ?",
        (before, before, limit),
    )
    return [(number, AuditRow(*values)) for number, *values in rows]
