"""Hold invites, access tokens and the audit log of a run's store as dictionaries, with the rules of the real tables."""

from __future__ import annotations

from dataclasses import replace

from coordinator.ledger.sql_access import AuditRow, StoredToken
from coordinator.ledger.sql_invites import StoredInvite, usable, used_up
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import PeerId


def contradicted(cause: str) -> StoreError:
    return StoreError("the ledger refuses a change that contradicts it", cause=cause)


class InviteTable:
    """The run's invites, with the rules of the real table; each method makes one change or answers one question."""

    def __init__(self) -> None:
        self._invites: dict[bytes, StoredInvite] = {}
        self._claims: set[tuple[bytes, PeerId]] = set()

    def create(self, invite: StoredInvite) -> None:
        self._invites[invite.token_hash] = replace(invite, made_unix_s=float(len(self._invites)))

    def claim(self, token_hash: bytes, role: str, peer_id: PeerId, now_unix_s: float) -> None:
        invite = usable(self._invites.get(token_hash), now_unix_s, role)
        if (token_hash, peer_id) in self._claims:
            return
        if invite.used >= invite.quota:
            raise used_up(invite)
        self._claims.add((token_hash, peer_id))
        self._invites[token_hash] = replace(invite, used=invite.used + 1)

    def check(self, token_hash: bytes, now_unix_s: float) -> None:
        usable(self._invites.get(token_hash), now_unix_s)

    def of(self, peer_id: PeerId) -> str:
        claimed = (invite for token, invite in self._invites.items() if (token, peer_id) in self._claims)
        return next((invite.invite_id for invite in claimed), "")

    def peers(self, invite_id: str) -> list[PeerId]:
        admitted = ((self._invites[token], peer_id) for token, peer_id in self._claims)
        return sorted(one for invite, one in admitted if invite.invite_id == invite_id and invite.role == "peer")

    def newest(self, limit: int) -> list[StoredInvite]:
        return list(reversed(self._invites.values()))[:limit]

    def revoke(self, invite_id: str) -> bool:
        found = [one for one in self._invites.values() if one.invite_id == invite_id and not one.revoked]
        self._invites |= {one.token_hash: replace(one, revoked=True) for one in found}
        return bool(found)


class AccessTable:
    """The run's tokens and its audit log; each method makes one change or answers one question."""

    def __init__(self) -> None:
        self._tokens: list[StoredToken] = []
        self._audit: list[AuditRow] = []

    def create(
        self, token_hash: bytes, name: str, access: str, made_unix_s: float, expires_unix_s: float | None
    ) -> StoredToken:
        if any(one.name == name and one.revoked_unix_s is None for one in self._tokens):
            raise contradicted(f"a valid token is named {name}")
        token = StoredToken(len(self._tokens) + 1, token_hash, name, access, made_unix_s, expires_unix_s, None)
        self._tokens.append(token)
        return token

    def revoke(self, token_id: int, revoked_unix_s: float) -> bool:
        if not 0 < token_id <= len(self._tokens) or self._tokens[token_id - 1].revoked_unix_s is not None:
            return False
        self._tokens[token_id - 1] = replace(self._tokens[token_id - 1], revoked_unix_s=revoked_unix_s)
        return True

    def tokens(self) -> list[StoredToken]:
        return list(self._tokens)

    def record(self, row: AuditRow) -> int:
        self._audit.append(row)
        return len(self._audit)

    def rows(self, before: int | None, limit: int) -> list[tuple[int, AuditRow]]:
        end = len(self._audit) if before is None else before - 1
        return [(number, self._audit[number - 1]) for number in range(end, max(0, end - limit), -1)]
