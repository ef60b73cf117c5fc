"""Test the stored tokens, invites and audit log, and what cannot be undone."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.ledger.sql_access import AuditRow
from coordinator.ledger.sql_invites import StoredInvite, usable, used_up
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import JoinRefused

ROW = AuditRow(1.0, "ann", "operator", "peers", "a, b", "drain", "done")


async def test_the_audit_log_and_the_tokens_are_never_changed(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store")
    await ledger.record_audit(ROW)
    await ledger.close()
    connection = sqlite3.connect(tmp_path / "store")
    for change in ("UPDATE audit SET outcome = 'x'", "DELETE FROM audit", "DELETE FROM tokens"):
        connection.execute("INSERT INTO tokens VALUES (null, x'00', 'b', 'viewer', 1, null, null)")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(change)
        connection.rollback()
    connection.close()


INVITE = StoredInvite(b"\xab" * 32, "peer", 2, 0, 100.0, "for Ann")


def test_an_invite_is_good_for_its_role_until_it_expires() -> None:
    assert usable(INVITE, 99.0, "peer") is INVITE
    assert usable(INVITE, 99.0) is INVITE
    assert INVITE.invite_id == "ab" * 8


@pytest.mark.parametrize(
    ("invite", "now", "role", "says"),
    [
        (None, 0.0, "peer", "no such invite"),
        (INVITE, 0.0, "origin", "for the role peer, not origin"),
        (INVITE, 100.0, "peer", "has expired"),
        (replace(INVITE, revoked=True), 0.0, "peer", "was revoked"),
    ],
)
def test_unusable_invites_are_refused(invite: StoredInvite | None, now: float, role: str, says: str) -> None:
    with pytest.raises(JoinRefused, match=says):
        usable(invite, now, role)


def test_used_up_invite_names_its_quota_and_the_command_that_makes_a_larger_one() -> None:
    assert used_up(INVITE).cause == "as many machines joined with it as its quota admits: 2"
    assert "`rollcast invite --quota 100`" in used_up(INVITE).fix
