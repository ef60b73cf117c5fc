"""Store invites in the ledger's tables, and decide whether an invite may be used."""

from __future__ import annotations

import time
from dataclasses import dataclass

from coordinator.ledger.sql import SqlConnection
from rollcast.runtime.errors import JoinRefused
from rollcast.wire.ids import PeerId

ID_LENGTH = 16  # hexadecimal digits of the token's hash that identify an invite to people
_COLUMNS = "token_hash, role, quota, used, expires_unix_s, note, revoked, made_unix_s"
_HAS_ID = f"substr(token_hash, 1, {ID_LENGTH // 2}) = ?"
_ASK = "ask the operator for a new invite"


@dataclass(frozen=True, slots=True)
class StoredInvite:
    """An invite without its token.

    Args:
        quota, used: identities that may join with it, and that have joined.
        note: names the intended holder.
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
        """Return the id shown to people, which reveals nothing of the token."""
        return self.token_hash.hex()[:ID_LENGTH]


def usable(invite: StoredInvite | None, now_unix_s: float, role: str | None = None) -> StoredInvite:
    """Return the invite if its holder may use it; the caller checks the quota.

    Raises:
        JoinRefused: the invite is unknown, revoked, expired or for another role.
    """
    if invite is None:
        raise JoinRefused("this run has no such invite", fix=_ASK)
    if role is not None and role != invite.role:
        raise JoinRefused(f"the invite is for the role {invite.role}, not {role}", fix=_ASK)
    if invite.revoked:
        raise JoinRefused("the invite was revoked", cause="an operator revoked it", fix=_ASK)
    if now_unix_s >= invite.expires_unix_s:
        raise JoinRefused("the invite has expired", fix=_ASK)
    return invite


def used_up(invite: StoredInvite) -> JoinRefused:
    """Return the refusal for one identity too many."""
    return JoinRefused(
        "the invite is used up",
        cause=f"as many machines joined with it as its quota admits: {invite.quota}",
        fix=f"{_ASK}; for a fleet of 100 machines the operator runs `rollcast invite --quota 100`",
    )


def insert_invite(connection: SqlConnection, invite: StoredInvite) -> None:
    connection.execute(
        f"INSERT INTO invites ({_COLUMNS}) VALUES (?, ?, ?, 0, ?, ?, 0, ?)",
        (invite.token_hash, invite.role, invite.quota, invite.expires_unix_s, invite.note, time.time()),
    )


def claim_invite(connection: SqlConnection, token_hash: bytes, role: str, peer_id: PeerId, now_unix_s: float) -> None:
    invite = usable(_select(connection, token_hash), now_unix_s, role)
    claim = (token_hash, peer_id)
    if connection.execute("SELECT 1 FROM invite_claims WHERE token_hash = ? AND peer_id = ?", claim).fetchone():
        return
    if invite.used >= invite.quota:
        raise used_up(invite)
    connection.execute("UPDATE invites SET used = used + 1 WHERE token_hash = ?", (token_hash,))
    connection.execute("INSERT INTO invite_claims VALUES (?, ?)", claim)


def check_invite(connection: SqlConnection, token_hash: bytes, now_unix_s: float) -> None:
    """Check that the invite is valid. One that is used up stays valid for those who joined with it."""
    usable(_select(connection, token_hash), now_unix_s)


def invite_of(connection: SqlConnection, peer_id: PeerId) -> str:
    row = connection.execute(
        "SELECT token_hash FROM invite_claims JOIN invites USING (token_hash) WHERE peer_id = ? "
        "ORDER BY made_unix_s, token_hash LIMIT 1",
        (peer_id,),
    ).fetchone()
    return "" if row is None else bytes(row[0]).hex()[:ID_LENGTH]


def peers_of(connection: SqlConnection, invite_id: str) -> list[PeerId]:
    rows = connection.execute(
        "SELECT DISTINCT peer_id FROM invite_claims JOIN invites USING (token_hash) "
        f"WHERE {_HAS_ID} AND role = 'peer' ORDER BY peer_id",
        (_beginning(invite_id),),
    )
    return [PeerId(peer_id) for (peer_id,) in rows]


def select_invites(connection: SqlConnection, limit: int) -> list[StoredInvite]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM invites ORDER BY made_unix_s DESC, token_hash LIMIT ?", (limit,))
    return [_invite(row) for row in rows]


def revoke_invite(connection: SqlConnection, invite_id: str) -> bool:
    changed = connection.execute(
        f"UPDATE invites SET revoked = 1 WHERE {_HAS_ID} AND revoked = 0",
        (_beginning(invite_id),),
    )
    return changed.rowcount > 0


def _beginning(invite_id: str) -> bytes:
    """Return the bytes with which the hash of an invite's token begins; empty, which none has, if it is no id."""
    is_id = len(invite_id) == ID_LENGTH and set(invite_id) <= set("0123456789abcdef")
    return bytes.fromhex(invite_id) if is_id else b""


def _select(connection: SqlConnection, token_hash: bytes) -> StoredInvite | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM invites WHERE token_hash = ?", (token_hash,)).fetchone()
    return None if row is None else _invite(row)


def _invite(row: tuple[bytes, str, int, int, float, str, int, float]) -> StoredInvite:
    token_hash, role, quota, used, expires_unix_s, note, revoked, made_unix_s = row
    return StoredInvite(token_hash, role, quota, used, expires_unix_s, note, bool(revoked), made_unix_s)
