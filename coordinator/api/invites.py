"""Serve the invite routes: make, list and revoke. An invite's text is shown once, to its maker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from pydantic import BaseModel, Field

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.operator_events import PeerBanned, PeerEnabled
from coordinator.http.requests import READ_DEADLINE_S
from coordinator.http.routes import Answer, Body, Call, Route
from coordinator.join import InviteIssuer, token_hash
from coordinator.ledger.sql_invites import ID_LENGTH
from coordinator.ledger.store import RunStore
from coordinator.views.phrases import duration
from rollcast.runtime.errors import MalformedMessage, RunOver
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import InvitedRole, PeerId
from rollcast.wire.joining.invite import QUOTA_DEFAULT

DAY_S = 86_400
LISTED_MAX = 500
QUOTA_MAX = 10_000
REASON_LENGTH_MAX = 200
LEDGER_DEADLINE_S = 10.0
#: What the holder of an invite runs. A cell's coordinator and its uplink both read the file.
_COMMANDS: dict[InvitedRole, str] = {
    "peer": "rollcast peer join {}",
    "origin": "rollcast peer run origin.toml --set invite={}",
    "cell": "umask 077; echo {} > head-invite.txt",
}


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
    banned: int  # of its identities


class InviteAct(Body):
    """An act on all identities that joined with an invite."""

    reason: str = Field("", max_length=REASON_LENGTH_MAX)


class InviteDone(BaseModel):
    """The outcome of an act on an invite: the ids of the peers that it changed."""

    done: list[str]


class ListedInvites(BaseModel):
    """The newest invites, newest first."""

    invites: list[ListedInvite]


class InviteActs:
    """Bans and enables the identities of an invite, and says whether another machine may be invited.

    Args:
        give: carries orders out, durably.
    """

    def __init__(self, core: CoordinatorCore, give: Callable[..., Awaitable[None]]) -> None:
        self._core = core
        self._give = give

    def check_joinable(self) -> None:
        """Raise RunOver if the operator is finishing the run, which then has no work for another machine."""
        last_step = self._core.state.last_step
        if last_step is None:
            return
        raise RunOver(
            "the run is finishing: a machine that joined now would get no work",
            cause=f"the operator ended it {'after step ' + str(last_step) if last_step else 'before its first step'}",
            fix="start another run, and invite the machine to that one",
        )

    async def ban(self, invite_id: str, peers: Iterable[PeerId], reason: str) -> list[PeerId]:
        """Ban these identities, which joined with the invite; return those that were not banned before."""
        orders = [
            PeerBanned(one, reason, reputation.name, invite_id)
            for one in peers
            if not (reputation := self._core.state.members.reputation(one)).banned
        ]
        await self._give(*orders)
        return [order.peer_id for order in orders]

    async def enable(self, peers: Iterable[PeerId], reason: str) -> list[PeerId]:
        """Undo what keeps these identities out of the run; return those that were banned or quarantined."""
        orders = [PeerEnabled(one, reason) for one in peers if self._core.state.members.reputation(one).kept_out]
        await self._give(*orders)
        return [order.peer_id for order in orders]

    def banned(self) -> Counter[str]:
        """Return how many identities are banned, by their invite."""
        return Counter(reputation.invite for reputation in self._core.state.members.banned().values())


class InviteRoutes:
    """Routes for operators to make, list, revoke, ban and enable invites."""

    def __init__(
        self,
        invites: InviteIssuer,
        ledger: RunStore,
        acts: InviteActs,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._invites = invites
        self._ledger = ledger
        self._acts = acts
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
                needs_run=True,
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
                needs_run=True,
            ),
            Route(
                "POST",
                f"{path}/{{id}}/ban",
                "operator",
                self._ban,
                "Revoke an invite, and ban every peer that joined with it.",
                body=InviteAct,
                answer=InviteDone,
                act="ban invite",
                needs_run=True,
                about=_about_act,
            ),
            Route(
                "POST",
                f"{path}/{{id}}/enable",
                "operator",
                self._enable,
                "Enable every peer of an invite after a ban or a quarantine.",
                body=InviteAct,
                answer=InviteDone,
                act="enable invite",
                needs_run=True,
                about=_about_act,
            ),
        ]

    async def _list(self, _call: Call) -> Answer:
        async with deadline(READ_DEADLINE_S, "the ledger to list invites"):
            stored = await self._ledger.invites(LISTED_MAX)
        banned = self._acts.banned()
        listed = [
            ListedInvite(
                id=one.invite_id,
                role=one.role,
                quota=one.quota,
                used=one.used,
                expires_unix_s=one.expires_unix_s,
                note=one.note,
                revoked=one.revoked,
                banned=banned[one.invite_id],
            )
            for one in stored
        ]
        return ListedInvites(invites=listed)

    async def _make(self, call: Call) -> Answer:
        asked: NewInvite = call.body
        self._acts.check_joinable()
        now = self._unix_clock()
        made = await self._invites.invite(
            asked.role, quota=asked.quota, lifetime_s=asked.lifetime_s, note=asked.note.strip()
        )
        text = made.encode()
        return MadeInvite(
            id=token_hash(made.token).hex()[:ID_LENGTH],
            invite=text,
            command=_COMMANDS[asked.role].format(text),
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

    async def _ban(self, call: Call) -> Answer:
        invite_id, asked = call.params["id"], call.body
        async with deadline(LEDGER_DEADLINE_S, "the ledger to revoke an invite"):
            revoked = await self._ledger.revoke_invite(invite_id)  # first: then no further identity can join with it
            peers = await self._ledger.peers_of_invite(invite_id)
        if not (revoked or peers):
            raise MalformedMessage(
                "no invite of this run has this id, or it is revoked and no peer joined with it",
                fix="see `rollcast invite list`",
            )
        return InviteDone(done=[*await self._acts.ban(invite_id, peers, asked.reason)])

    async def _enable(self, call: Call) -> Answer:
        async with deadline(LEDGER_DEADLINE_S, "the ledger to list the identities of an invite"):
            peers = await self._ledger.peers_of_invite(call.params["id"])
        if not peers:
            raise MalformedMessage("no peer joined with an invite of this id", fix="see `rollcast invite list`")
        return InviteDone(done=[*await self._acts.enable(peers, call.body.reason)])


def _about_act(call: Call) -> tuple[str, str]:
    return call.params["id"], call.body.reason


def _about(call: Call) -> tuple[str, str]:
    asked: NewInvite = call.body
    machines = "1 machine" if asked.quota == 1 else f"{asked.quota} machines"
    return asked.note, f"{asked.role}, {machines}, valid for {duration(asked.lifetime_s)}"
