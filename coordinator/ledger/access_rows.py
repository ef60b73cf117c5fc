"""Tokens of the HTTP API and the audit log, as the ledger keeps them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token without its secret.

    Args:
        access: viewer, operator or admin.
        expires_unix_s, revoked_unix_s: None: never, and not.
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
        outcome: "done", or the code and why not.
    """

    at_unix_s: float
    who: str
    access: str
    act: str
    subject: str
    detail: str
    outcome: str


class AccessStore(Protocol):
    """Where tokens and the audit log are durable. Each method may raise StoreError."""

    def create_token(
        self, token_hash: bytes, name: str, access: str, *, made_unix_s: float, expires_unix_s: float | None
    ) -> asyncio.Future[StoredToken]:
        """A new token; StoreError where a live one has that name."""

    def revoke_token(self, token_id: int, revoked_unix_s: float) -> asyncio.Future[bool]:
        """False where it is not there or revoked already."""

    def tokens(self) -> asyncio.Future[list[StoredToken]]:
        """All there ever were, oldest first."""

    def record_audit(self, row: AuditRow) -> asyncio.Future[int]:
        """The row's number."""

    def audit_rows(self, before: int | None, limit: int) -> asyncio.Future[list[tuple[int, AuditRow]]]:
        """The newest ones with a number below ``before``, newest first."""
