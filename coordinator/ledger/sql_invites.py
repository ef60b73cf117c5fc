"""What is written to and read from the ledger's tables of invites.

Invites as the ledger keeps them, and what speaks against using one.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from coordinator.ledger.schema import NOW_UNIX_S
from rollcast.runtime.errors import JoinRefused
from rollcast.wire.ids import PeerId

ID_LENGTH = 16  # of what names an invite to people: the beginning of its token's hash, in hexadecimal
_ASK = "ask the operator for a new invite"


@dataclass(frozen=True, slots=True)
class StoredInvite:
    """An invite without its token.

    Args:
        quota, used: identities that may join with it, and did.
        note: for whom it is, for people.
    """

    token_hash: bytes
    role: str
    quota: int
    used: int
    expires_unix_s: float
    note: str = ""
    revoked: bool = False
    made_unix_s: float = 0.0

    @property
    def invite_id(self) -> str:
        """Names it to people; says nothing of its token."""
        return self.token_hash.hex()[:ID_LENGTH]


def usable(invite: StoredInvite | None, now_unix_s: float, role: str | None = None) -> StoredInvite:
    """The invite, if those who have it may use it; its quota is looked at by who counts.

    Raises:
        JoinRefused: why not.
    """
    if invite is None:
        raise JoinRefused("the invite is not one of this run", fix=_ASK)
    if role is not None and role != invite.role:
        raise JoinRefused(f"the invite is for the role {invite.role}, not {role}", fix=_ASK)
    if invite.revoked:
        raise JoinRefused("the invite was revoked", cause="the operator took it back", fix=_ASK)
    if now_unix_s >= invite.expires_unix_s:
        raise JoinRefused("the invite has expired", fix=_ASK)
    return invite


def used_up(invite: StoredInvite) -> JoinRefused:
    """Another identity may not join with it."""
    return JoinRefused("the invite is used up", cause=f"it was good for {invite.quota}", fix=_ASK)


_COLUMNS = "token_hash, role, quota, used, expires_unix_s, note, revoked, made_unix_s"


def insert_invite(connection: sqlite3.Connection, invite: StoredInvite) -> None:
    connection.execute(
        f"INSERT INTO invites ({_COLUMNS}) VALUES (?, ?, ?, 0, ?, ?, 0, {NOW_UNIX_S})",
        (invite.token_hash, invite.role, invite.quota, invite.expires_unix_s, invite.note),
    )


def claim_invite(
    connection: sqlite3.Connection, token_hash: bytes, role: str, peer_id: PeerId, now_unix_s: float
) -> None:
    invite = usable(_select(connection, token_hash), now_unix_s, role)
    claim = (token_hash, peer_id)
    if connection.execute("SELECT 1 FROM invite_claims WHERE token_hash = ? AND peer_id = ?", claim).fetchone():
        return
    if invite.used >= invite.quota:
        raise used_up(invite)
    connection.execute("UPDATE invites SET used = used + 1 WHERE token_hash = ?", (token_hash,))
    connection.execute("INSERT INTO invite_claims VALUES (?, ?)", claim)


def check_invite(connection: sqlite3.Connection, token_hash: bytes, now_unix_s: float) -> None:
    """One that is used up is good for those who used it."""
    usable(_select(connection, token_hash), now_unix_s)


def select_invites(connection: sqlite3.Connection, limit: int) -> list[StoredInvite]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM invites ORDER BY made_unix_s DESC, token_hash LIMIT ?", (limit,))
    return [_invite(row) for row in rows]


def revoke_invite(connection: sqlite3.Connection, invite_id: str) -> bool:
    changed = connection.execute(
        "UPDATE invites SET revoked = 1 WHERE substr(lower(hex(token_hash)), 1, ?) = ? AND NOT revoked",
        (ID_LENGTH, invite_id),
    )
    return changed.rowcount > 0


def _select(connection: sqlite3.Connection, token_hash: bytes) -> StoredInvite | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM invites WHERE token_hash = ?", (token_hash,)).fetchone()
    return None if row is None else _invite(row)


def _invite(row: tuple[bytes, str, int, int, float, str, int, float]) -> StoredInvite:
    token_hash, role, quota, used, expires_unix_s, note, revoked, made_unix_s = row
    return StoredInvite(token_hash, role, quota, used, expires_unix_s, note, bool(revoked), made_unix_s)
