"""Authenticate machines that may join, by their invite, and members, by their proof of membership."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.http.auth import check_site
from coordinator.http.routes import Caller
from coordinator.join import JoinDesk
from rollcast.runtime.errors import JoinRefused
from rollcast.wire.identity.member_proof import SCHEME as MEMBER
from rollcast.wire.ids import PeerId

_TOKEN_LENGTH_MAX = 256
_SCHEME = "invite"


def member_in(desk: JoinDesk, path: str, headers: Mapping[str, str]) -> PeerId | None:
    """Return the member that sends ``Authorization: Member PROOF``; None if the header is missing or of another scheme.

    Raises:
        BadSignature, WrongKey, JoinRefused: it is not a member's proof for this path.
    """
    scheme, _, proof = headers.get("Authorization", "").partition(" ")
    return desk.check_member(proof, path) if scheme.lower() == MEMBER.lower() else None


async def check_invited(desk: JoinDesk, caller: Caller, method: str, headers: Mapping[str, str]) -> None:
    """Admit callers with a token, and callers with an invite: ``Authorization: Invite TOKEN``.

    Raises:
        JoinRefused: the caller has neither.
        NotAllowed: a browser sends the request for a page of another site.
        StoreError, WaitTimedOut: the ledger cannot look up the invite.
    """
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == _SCHEME:
        if not 0 < len(token) <= _TOKEN_LENGTH_MAX or not token.isascii():
            raise JoinRefused("this is not an invite's token", fix="give the whole invite to `rollcast peer check`")
        await desk.check_invite(token)
        return
    if not caller.may("viewer"):
        raise JoinRefused(
            "this request needs an invite or a token", fix="give the invite: `rollcast peer check INVITE`"
        )
    check_site(method, headers)
