"""Test views of broadcasts: the relay tree, versions, and how far each of them has spread."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.core.core import CoordinatorCore
from coordinator.core.status.broadcast import build_broadcast_status
from coordinator.core.status.turns import at_once
from coordinator.views import relay_tree as tree
from coordinator.views.broadcast import build_broadcast
from coordinator.views.relay_tree import Shape, build_tree, depths_of, group_of, slowest_branch
from coordinator.views.versions import VERSIONS_SHOWN, VersionHistory, VersionView
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import World, announced, heartbeat, held
from tests.coordinator.views.viewed import NOW, core, facts, link, world


def give_links(found: CoordinatorCore, **rates: float) -> None:
    """Give each of these members links to all others, with its rate."""
    names = [one.peer_id for one in found.state.members]
    for name, rate in rates.items():
        member = found.state.members.get(PeerId(name))
        assert member is not None
        member.facts = facts(name, links=tuple(link(other, rate) for other in names if other != name))


def test_every_member_is_a_node_and_every_hop_of_the_plan_an_edge() -> None:
    found = core("a", "b")
    give_links(found, origin=8e6, a=2e6, b=0.0)
    drawn = at_once(build_tree(found.state, Shape(), 0.0))
    nodes = {one.id: one for one in drawn.nodes}
    assert not drawn.by_region
    assert {name: (one.role, one.region, one.depth, one.peers, one.share_held) for name, one in nodes.items()} == {
        "origin": ("origin", "us", 0, 1, 1.0),
        "a": ("peer", "eu", 1, 1, 1.0),
        "b": ("peer", "us", 1, 1, 1.0),
    }
    edges = {(one.source, one.target): one for one in drawn.edges}
    plan = found.state.relay.plan
    assert plan is not None
    planned = {(parent, child) for stripe in plan.stripes for child, parent in stripe.parents.items()}
    assert set(edges) == planned
    assert (edges["a", "b"].bytes_per_s, edges["a", "b"].rtt_s, edges["a", "b"].transport) == (2e6, 0.04, "direct")
    assert edges["b", "a"].bytes_per_s is None
    assert not edges["a", "b"].lan


def test_large_tree_is_grouped_by_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "PEERS_DRAWN_MAX", 3)
    found = core("a", "b", "c", "d")
    give_links(found, origin=8e6, a=2e6, b=1e6, c=2e6, d=1e6)
    shape = Shape()
    drawn = at_once(build_tree(found.state, shape, 0.0))
    assert drawn.by_region
    assert {one.id: one.peers for one in drawn.nodes} == {"origin": 1, "region:eu": 2, "region:us": 2}
    edges = {(one.source, one.target): one for one in drawn.edges}
    assert all(source != target for source, target in edges)
    assert edges["region:eu", "region:us"].bytes_per_s == 8e6
    give_links(found, a=20e6)
    assert at_once(build_tree(found.state, shape, 1.0)).edges is drawn.edges
    later = {(one.source, one.target): one for one in at_once(build_tree(found.state, shape, 9.0)).edges}
    assert later["region:eu", "region:us"].bytes_per_s == 44e6


def test_members_without_a_region_have_a_node_too() -> None:
    run = World()
    run.start("a")
    member = run.core.state.members.get(PeerId("a"))
    assert member is not None
    assert group_of(member) == f"region:{tree.NO_REGION}"


def test_depths_count_hops_from_the_root() -> None:
    plan: Any = type("P", (), {"root": "o", "list_parents": {"c": "b", "b": "a", "a": "o", "d": "o"}})
    assert depths_of(plan) == {"o": 0, "a": 1, "b": 2, "c": 3, "d": 1}


def test_the_slowest_branch_leads_to_the_member_that_the_version_reaches_last() -> None:
    run = world("a", "b", "c")
    give_links(run.core, origin=8e6, a=4e6, b=1e6, c=3e6)
    run.now += 5.0
    run.handle(announced(1))
    run.handle(held("a", 1))
    run.handle(held("b", 1))
    run.now += 2.0
    branch = slowest_branch(run.core.state, run.now)
    assert branch is not None
    assert (branch.path, branch.seconds, branch.version) == (("origin", "b", "c"), 2.0, 1)
    run.handle(held("c", 1))
    branch = slowest_branch(run.core.state, run.now + 50.0)
    assert branch is not None
    assert (branch.path[-1], branch.seconds, branch.version) == ("c", 2.0, 1)


def test_tree_is_empty_before_a_plan() -> None:
    found = World().core
    assert at_once(build_tree(found.state, Shape(), 0.0)).nodes == ()
    assert slowest_branch(found.state, 0.0) is None


def test_each_version_has_its_time_and_counts_until_the_next() -> None:
    run, history = world("a", "b"), VersionHistory()
    state = run.core.state
    history.observe(state)
    run.now += 3.0
    run.handle(announced(1))
    history.observe(state)
    run.handle(held("a", 1))
    run.handle(heartbeat("a", delta_bytes_saved=500, reparentings=1))
    history.observe(state)
    assert history.view()[-1] == VersionView(1, None, 500, 1)
    run.now += 4.0
    run.handle(held("b", 1))
    run.handle(announced(2))
    history.observe(state)
    run.handle(heartbeat("a", delta_bytes_saved=700, reparentings=1))
    history.observe(state)
    assert history.view()[-2:] == (VersionView(1, 4.0, 500, 1), VersionView(2, None, 200, 0))


def test_only_the_newest_are_kept() -> None:
    run, history = world("a"), VersionHistory()
    for version in range(1, VERSIONS_SHOWN + 10):
        run.handle(announced(version))
        history.observe(run.core.state)
    view = history.view()
    assert (len(view), view[-1].version) == (VERSIONS_SHOWN, VERSIONS_SHOWN + 9)


def test_view_is_the_status_with_tree_and_earlier_versions() -> None:
    found = core("a", "b")
    view = at_once(build_broadcast(found.state, Shape(), VersionHistory(), now=NOW, unix_s=3.0))
    plain = msgspec.json.decode(msgspec.json.encode(view))
    status = msgspec.json.decode(msgspec.json.encode(at_once(build_broadcast_status(found.state, now=NOW))))
    assert status.items() <= plain.items()
    assert set(plain) - set(status) == {"tree", "history", "slowest_branch", "at_unix_s"}
    assert [one["version"] for one in plain["history"]] == [0]
    assert {one["name"] for one in plain["tree"]["nodes"]} == {"origin", "a", "b"}
