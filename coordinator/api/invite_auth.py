"""Routes for machines that may join, which show their invite, and for members, which show that they are one."""

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
    """The member who sends ``Authorization: Member PROOF``; None: the header is another, or none.

    Raises:
        BadSignature, WrongKey, JoinRefused: it is no proof of a member for this path.
    """
    scheme, _, proof = headers.get("Authorization", "").partition(" ")
    return desk.check_member(proof, path) if scheme.lower() == MEMBER.lower() else None


async def check_invited(desk: JoinDesk, caller: Caller, method: str, headers: Mapping[str, str]) -> None:
    """Let those in who have a token, and those who have an invite: ``Authorization: Invite TOKEN``.

    Raises:
        JoinRefused: neither.
        NotAllowed: a browser sends it for a page of another site.
        StoreError, WaitTimedOut: the invite could not be looked up.
    """
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == _SCHEME:
        if not 0 < len(token) <= _TOKEN_LENGTH_MAX or not token.isascii():
            raise JoinRefused("this is not an invite's token", fix="give the whole invite to `rollcast peer check`")
        await desk.check_invite(token)
        return
    if not caller.may("viewer"):
        raise JoinRefused("this needs an invite or a token", fix="give the invite: `rollcast peer check INVITE`")
    check_site(method, headers)
