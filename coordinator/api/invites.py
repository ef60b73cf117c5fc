"""Serve the invite routes: make, list and revoke. An invite's text is shown once, to its maker."""

from __future__ import annotations

import time
from collections.abc import Callable

from pydantic import BaseModel, Field

from coordinator.http.routes import Answer, Body, Call, Route
from coordinator.join import InviteIssuer, token_hash
from coordinator.ledger.sql_invites import ID_LENGTH
from coordinator.ledger.store import RunStore
from rollcast.runtime.errors import MalformedMessage
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import InvitedRole
from rollcast.wire.joining.invite import QUOTA_DEFAULT

DAY_S = 86_400
LISTED_MAX = 500
QUOTA_MAX = 10_000
LEDGER_DEADLINE_S = 10.0


class NewInvite(Body):
    """The request for a new invite.

    Args:
        quota: identities that may join with it.
        lifetime_s: seconds until it expires.
        note: the person or machine that the invite is meant for.
    """

    role: InvitedRole = "peer"
    quota: int = Field(QUOTA_DEFAULT, ge=1, le=QUOTA_MAX)
    lifetime_s: float = Field(7 * DAY_S, ge=60, le=365 * DAY_S)
    note: str = Field("", max_length=120)


class MadeInvite(BaseModel):
    """A new invite; its text and the donor's command are returned only here."""

    id: str
    invite: str
    command: str
    expires_unix_s: float


class ListedInvite(BaseModel):
    """An invite without its token."""

    id: str
    role: str
    quota: int
    used: int
    expires_unix_s: float
    note: str
    revoked: bool


class ListedInvites(BaseModel):
    """The newest invites, newest first."""

    invites: list[ListedInvite]


class InviteRoutes:
    """Routes for operators to make, list and revoke invites."""

    def __init__(self, invites: InviteIssuer, ledger: RunStore, unix_clock: Callable[[], float] = time.time) -> None:
        self._invites = invites
        self._ledger = ledger
        self._unix_clock = unix_clock

    def routes(self) -> list[Route]:
        path = "/api/v1/invites"
        return [
            Route("GET", path, "viewer", self._list, "Return the invites, newest first.", answer=ListedInvites),
            Route(
                "POST",
                path,
                "operator",
                self._make,
                "Make an invite: one line for a donor.",
                body=NewInvite,
                answer=MadeInvite,
                act="invite",
                about=_about,
            ),
            Route(
                "POST",
                f"{path}/{{id}}/revoke",
                "operator",
                self._revoke,
                "Revoke an invite.",
                answer=ListedInvites,
                act="revoke invite",
            ),
        ]

    async def _list(self, _call: Call) -> Answer:
        async with deadline(LEDGER_DEADLINE_S, "the ledger to list invites"):
            stored = await self._ledger.invites(LISTED_MAX)
        listed = [
            ListedInvite(
                id=one.invite_id,
                role=one.role,
                quota=one.quota,
                used=one.used,
                expires_unix_s=one.expires_unix_s,
                note=one.note,
                revoked=one.revoked,
            )
            for one in stored
        ]
        return ListedInvites(invites=listed)

    async def _make(self, call: Call) -> Answer:
        asked: NewInvite = call.body
        now = self._unix_clock()
        made = await self._invites.invite(
            asked.role, quota=asked.quota, lifetime_s=asked.lifetime_s, note=asked.note.strip()
        )
        text = made.encode()
        joins = "rollcast peer join " if asked.role == "peer" else "rollcast peer run origin.toml --set invite="
        return MadeInvite(
            id=token_hash(made.token).hex()[:ID_LENGTH],
            invite=text,
            command=f"{joins}{text}",
            expires_unix_s=now + asked.lifetime_s,
        )

    async def _revoke(self, call: Call) -> Answer:
        async with deadline(LEDGER_DEADLINE_S, "the ledger to revoke an invite"):
            revoked = await self._ledger.revoke_invite(call.params["id"])
        if not revoked:
            raise MalformedMessage(
                "no invite of this run has this id, or it is revoked already", fix="see `rollcast invite list`"
            )
        return await self._list(call)


def _about(call: Call) -> tuple[str, str]:
    asked: NewInvite = call.body
    return asked.note, f"{asked.role}, for {asked.quota}, {asked.lifetime_s:g} s"
