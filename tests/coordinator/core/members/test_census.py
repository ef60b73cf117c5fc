"""Counting the members for a status."""

from __future__ import annotations

from coordinator.core.members.census import census_of
from coordinator.core.members.membership import Members
from tests.coordinator.core_world import heartbeat, joined


def test_the_census_counts_states_and_who_may_work() -> None:
    members = Members(heartbeat_timeout_s=10.0)
    for name in ("origin", "working", "silent", "drained", "standby", "banned"):
        members.join(joined(name, role="origin" if name == "origin" else "peer"), now=0.0)
    of = {member.peer_id: member for member in members}
    of["working"].facts = heartbeat("working", state="generating", tokens_per_second=40.0).facts
    of["standby"].facts = heartbeat("standby", state="standby", tokens_per_second=2.0).facts
    of["drained"].reputation.drained = "by the operator"
    of["standby"].reputation.standby = "too dear"
    of["banned"].reputation.banned, of["banned"].reputation.standby = "it cheats", "too dear"
    census = census_of(members)
    assert census.by_role_and_state == {
        ("origin", "joined"): 1,
        ("peer", "generating"): 1,
        ("peer", "joined"): 1,
        ("peer", "drained"): 1,
        ("peer", "standby"): 1,
        ("peer", "banned"): 1,
    }
    assert [member.peer_id for member in census.peers_on] == ["working", "silent"]
    assert census.peers_on_standby == 2
    assert census.tokens_per_s == 42.0
