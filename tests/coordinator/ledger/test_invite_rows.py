from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.ledger.sql_invites import StoredInvite, usable, used_up
from rollcast.runtime.errors import JoinRefused

INVITE = StoredInvite(b"\xab" * 32, "peer", 2, 0, 100.0, "for Ann")


def test_an_invite_is_good_for_its_role_until_it_expires() -> None:
    assert usable(INVITE, 99.0, "peer") is INVITE
    assert usable(INVITE, 99.0) is INVITE
    assert INVITE.invite_id == "ab" * 8


@pytest.mark.parametrize(
    ("invite", "now", "role", "says"),
    [
        (None, 0.0, "peer", "not one of this run"),
        (INVITE, 0.0, "origin", "for the role peer, not origin"),
        (INVITE, 100.0, "peer", "has expired"),
        (replace(INVITE, revoked=True), 0.0, "peer", "was revoked"),
    ],
)
def test_what_speaks_against_it(invite: StoredInvite | None, now: float, role: str, says: str) -> None:
    with pytest.raises(JoinRefused, match=says):
        usable(invite, now, role)


def test_used_up_says_for_how_many_it_was() -> None:
    assert used_up(INVITE).cause == "its quota is 2"
