"""The simulated store's invites."""

from __future__ import annotations

from dataclasses import replace

from coordinator.ledger.sql_invites import StoredInvite, usable, used_up
from rollcast.wire.ids import PeerId


class InviteTable:
    """Each method is one change, or one question."""

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

    def newest(self, limit: int) -> list[StoredInvite]:
        return list(reversed(self._invites.values()))[:limit]

    def revoke(self, invite_id: str) -> bool:
        found = [one for one in self._invites.values() if one.invite_id == invite_id and not one.revoked]
        self._invites |= {one.token_hash: replace(one, revoked=True) for one in found}
        return bool(found)
