from __future__ import annotations

from typing import cast

import pytest

from coordinator.api.invite_auth import check_invited, member_in
from coordinator.http.routes import Caller
from coordinator.join import JoinDesk
from rollcast.runtime.errors import JoinRefused, NotAllowed
from rollcast.wire.ids import PeerId

STRANGER, VIEWER = Caller("", "anyone"), Caller("me", "viewer")


class Desk:
    async def check_invite(self, token: str) -> None:
        if token != "right":
            raise JoinRefused("the invite is not one of this run")

    def check_member(self, proof: str, path: str) -> PeerId:
        if (proof, path) != ("proof", "/here"):
            raise JoinRefused("not a member")
        return PeerId("me")


@pytest.mark.parametrize(
    ("caller", "authorization", "may"),
    [
        (STRANGER, "Invite right", True),
        (STRANGER, "invite right", True),
        (STRANGER, "Invite wrong", False),
        (STRANGER, "Bearer right", False),
        (STRANGER, "", False),
        (VIEWER, "Bearer x", True),
        (VIEWER, "", True),
        (VIEWER, "Invite wrong", False),
    ],
)
async def test_an_invite_or_a_token(caller: Caller, authorization: str, may: bool) -> None:
    desk = cast(JoinDesk, Desk())
    if may:
        await check_invited(desk, caller, "POST", {"Authorization": authorization})
    else:
        with pytest.raises(JoinRefused):
            await check_invited(desk, caller, "POST", {"Authorization": authorization})


async def test_no_other_site_measures_in_somebodys_name() -> None:
    headers = {"Host": "127.0.0.1:1", "Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    with pytest.raises(NotAllowed):
        await check_invited(cast(JoinDesk, Desk()), VIEWER, "POST", headers)


def test_a_proof_names_a_member_and_another_header_nobody() -> None:
    desk = cast(JoinDesk, Desk())
    assert member_in(desk, "/here", {"Authorization": "Member proof"}) == "me"
    assert member_in(desk, "/here", {"Authorization": "Invite right"}) is None
    assert member_in(desk, "/here", {}) is None
    with pytest.raises(JoinRefused):
        member_in(desk, "/there", {"Authorization": "member proof"})
