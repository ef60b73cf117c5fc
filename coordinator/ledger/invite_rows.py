"""Invites as the ledger keeps them, and what speaks against using one."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.runtime.errors import JoinRefused

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
