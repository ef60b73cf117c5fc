"""Test views of workers: identity, activity, and cost in the capacity model."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.events import PeerLeft
from coordinator.core.events.operator_events import PeerBanned
from coordinator.core.events.prices import Price
from coordinator.core.events.reach_events import ReachabilityTold
from coordinator.core.status.turns import MEMBERS_A_TURN, at_once
from coordinator.views import workers
from coordinator.views.capacity import DECISIONS, build_capacity
from coordinator.views.event_rows import EventView
from coordinator.views.workers import COLUMNS, KnownMembers, build_workers
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import World, joined
from tests.coordinator.views.viewed import NOW, core, facts, link, world


def rows(found: CoordinatorCore, known: KnownMembers | None = None) -> dict[str, dict[str, Any]]:
    """Return the rows of the table by name."""
    view = at_once(build_workers(found.state, known or KnownMembers(), now=NOW + 2.0, unix_s=5.0))
    assert view.columns == COLUMNS
    assert all(len(row) == len(COLUMNS) for row in view.rows)
    assert msgspec.json.decode(msgspec.json.encode(view))["at_unix_s"] == 5.0
    return {row[1]: dict(zip(view.columns, row, strict=True)) for row in view.rows}


def test_a_member_is_one_row() -> None:
    found = core("a", "b")
    member = found.state.members.get(PeerId("a"))
    assert member is not None
    links = (link("x", transport="p2p"), link("b", lan=True))
    member.facts = facts("a", tokens_per_second=12.34, uplink_bytes_per_second=5e6, links=links, chunk_bytes_sent=9)
    member.reputation.accepted, member.reputation.dropped = 3, 1
    row = rows(found)["a"]
    assert (row["peer_id"], row["role"], row["region"], row["software"], row["public_name"]) == (
        "a", "peer", "eu", "rollcast 1.0", "Ada",
    )  # fmt: skip
    assert (row["state"], row["transport"], row["tokens_per_s"]) == ("generating", "LAN+libp2p", 12.3)
    assert (row["upload_bytes_per_s"], row["download_bytes_per_s"], row["chunk_bytes_sent"]) == (5_000_000, None, 9)
    assert (row["accept_share"], row["last_seen_s"], row["joined_s_ago"], row["version_lag"]) == (0.75, 2.0, 2, 0)
    assert set(row["parents"]) == {"origin", "b"}
    assert rows(found)["b"]["tokens_per_s"] == 0.0


def test_the_size_of_a_cell_is_not_known_while_its_coordinator_is_away() -> None:
    found = core("a")
    member = found.state.members.get(PeerId("a"))
    assert member is not None
    member.is_cell, member.concurrent_rollouts, member.facts = True, 8, None
    assert rows(found)["a"]["concurrent_rollouts"] == 8, "as its Hello has it"
    member.facts = facts("a", cell_workers=2, cell_slots=8)
    assert rows(found)["a"]["concurrent_rollouts"] == 8
    member.facts = facts("a", cell_workers=None, cell_slots=8)
    assert rows(found)["a"]["concurrent_rollouts"] is None


def test_prices_are_matched_once_until_there_are_others() -> None:
    found, known = core("a"), KnownMembers()
    found.state.prices = (Price(name="a", usd_per_hour=2.0),)
    assert rows(found, known)["a"]["usd_per_hour"] == 2.0
    found.state.prices = (Price(name="a", usd_per_hour=3.0),)
    assert rows(found, known)["a"]["usd_per_hour"] == 3.0


def test_those_that_left_follow_and_generate_nothing() -> None:
    run = world("a", "b")
    member = run.core.state.members.get(PeerId("a"))
    assert member is not None
    member.facts = facts("a", tokens_per_second=5.0)
    run.handle(PeerLeft(PeerId("a"), "its owner wants the machine", finished=True))
    row = rows(run.core)["a"]
    assert (row["state"], row["reason"], row["tokens_per_s"]) == ("left", "its owner wants the machine", 0.0)
    assert list(rows(run.core)) == ["origin", "b", "a"]


def test_banned_identities_stay_listed() -> None:
    run = world("a", "b")
    run.handle(PeerBanned(PeerId("a"), "wrong tokens", "a"))
    assert rows(run.core)["a"]["state"] == "banned"
    run.core.state.members._departed.clear()
    row = rows(run.core)["a"]
    assert (row["state"], row["banned"], row["last_seen_s"], row["parents"]) == ("banned", True, None, ())
    assert "wrong tokens" in row["reason"]


def test_large_fleet_is_truncated(monkeypatch: Any) -> None:
    monkeypatch.setattr(workers, "ROWS_MAX", 2)
    view = at_once(build_workers(core("a", "b").state, KnownMembers(), now=NOW, unix_s=0.0))
    assert (len(view.rows), view.left_out) == (2, 1)


def test_how_a_member_is_reached_is_in_its_row() -> None:
    found = core("a")
    reach, peer_id = found.state.reach, PeerId("a")
    member = found.state.members.get(peer_id)
    assert member is not None
    member.facts = facts("a", p2p="running")
    names = ("reachability", "nat", "dial_check", "p2p")
    assert [rows(found)["a"][name] for name in names] == ["dialable", "unknown", "", "running"]
    reach.joined(peer_id, "192.0.2.1", "192.0.2.1:7")
    reach.reported(ReachabilityTold(peer_id, "port-restricted", "192.0.2.1:9"))
    reach.found(peer_id, dialable=False, checked="0 of 4 peers that tried could connect to 192.0.2.1:7: no answer")
    assert [rows(found)["a"][name] for name in names[:3]] == [
        "hole-punchable",
        "port-restricted",
        "0 of 4 peers that tried could connect to 192.0.2.1:7: no answer",
    ]


def test_every_worker_has_its_price_its_speed_and_its_reason() -> None:
    found = core("a", "b")
    found.state.prices = (Price(name="a", usd_per_hour=2.0),)
    reputation = found.state.members.reputation(PeerId("b"))
    reputation.standby, reputation.pin, reputation.slots_per_s = "off: not needed", "off", 0.25
    event = EventView(3, 1.0, "standby", "b", "b", "off: not needed", "plan 1")
    view = at_once(
        build_capacity(found.state, found.activation_status(), KnownMembers(), None, (event,), now=NOW, unix_s=4.0)
    )
    assert [(one.name, one.on, one.pin, one.reason, one.usd_per_hour, one.rollouts_per_s) for one in view.workers] == [
        ("a", True, "", "", 2.0, None),
        ("b", False, "off", "off: not needed", 0.0, 0.25),
    ]
    assert (view.mode, view.providers, view.spending, view.decisions) == ("off", None, None, (event,))
    assert {"activated", "standby", "pinned", "drained"} <= set(DECISIONS)


def test_rented_workers_bring_their_providers() -> None:
    spending = {"providers": [{"provider": "aws", "machine_usd": 1.0}], "usd_per_hour": 2.0}
    found = core("a")
    view = at_once(
        build_capacity(found.state, found.activation_status(), KnownMembers(), spending, (), now=NOW, unix_s=4.0)
    )
    assert view.providers == ({"provider": "aws", "machine_usd": 1.0},)
    assert view.spending == spending


def test_no_cost_is_stated_where_no_worker_has_a_price() -> None:
    found = core("a")
    view = at_once(
        build_capacity(found.state, found.activation_status(), KnownMembers(), None, (), now=NOW, unix_s=4.0)
    )
    assert (view.has_prices, view.workers[0].usd_per_hour) == (False, None)


def test_members_that_leave_between_two_turns_are_shown_as_they_were() -> None:
    large = World(validate_every_event=False)
    large.handle(joined("origin", role="origin"))
    for number in range(MEMBERS_A_TURN + 1):
        large.core.state.members.join(joined(f"p{number}"), 0.0)
    turns = build_workers(large.core.state, KnownMembers(), now=1.0, unix_s=1.0)
    next(turns)
    large.core.state.members.join(joined("late"), 1.0)
    names = [row[1] for row in at_once(turns).rows]
    assert names == ["origin", *(f"p{number}" for number in range(MEMBERS_A_TURN + 1))]
