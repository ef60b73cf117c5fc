"""Test that a member may ask how it is seen, with only its identity and an open session."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.reachability.nat_kind import nat_kind
from peer.reachability.nat_probe import MemberHttp, seen_from_outside
from rollcast.runtime.errors import BadSignature, JoinRefused
from rollcast.wire.identity.identity import Identity
from tests.coordinator.running import Member, running


async def test_only_members_learn_how_they_are_seen(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        identity = Identity.generate()
        enrolment = await run.join("peer", identity)
        door = MemberHttp(identity, enrolment)
        with pytest.raises(JoinRefused):  # it has no session yet
            await seen_from_outside(door)
        async with Member(enrolment) as member:
            await member.hello()
            await member.next("welcome")
            seen = await seen_from_outside(door)
            assert (seen.local, seen.address, seen.reached) == ("127.0.0.1", "127.0.0.1", True)
            assert nat_kind(seen, dialled=True) == "open"
            with pytest.raises(JoinRefused):
                await seen_from_outside(MemberHttp(Identity.generate(), enrolment))
            with pytest.raises(BadSignature):
                await seen_from_outside(MemberHttp(identity, enrolment, wall_clock=lambda: 1.7e9))
