from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.actions import Neighbour, SendPlan
from coordinator.relay_plan import RelayNode, RelayPlanner, TreeShape, plan_tree
from rollcast.wire.ids import PeerId

SHAPE = TreeShape(chain_peers_max=4, origin_degree=1, relay_degree=2)


def node(name: str, *, dialable: bool = True, may_relay: bool = True) -> RelayNode:
    return RelayNode(PeerId(name), "peer", f"{name}:1" if dialable else "", may_relay)


def origin(*, dialable: bool = True) -> RelayNode:
    return RelayNode(PeerId("origin"), "origin", "origin:1" if dialable else "", True)


def tree(*nodes: RelayNode, before: dict[PeerId, PeerId] | None = None) -> dict[str, str]:
    parents = plan_tree(nodes, SHAPE, before or {})
    assert parents is not None
    return {str(child): str(parent) for child, parent in parents.items()}


def test_without_an_origin_there_is_no_plan() -> None:
    assert plan_tree([node("a")], SHAPE, {}) is None


def test_few_peers_make_a_chain() -> None:
    assert tree(node("a"), origin(), node("b"), node("c")) == {"a": "origin", "b": "a", "c": "b"}


def test_many_peers_make_a_tree_of_bounded_degree() -> None:
    parents = tree(origin(), *(node(f"p{number}") for number in range(7)))
    assert parents == {"p0": "origin", "p1": "p0", "p2": "p0", "p3": "p1", "p4": "p1", "p5": "p2", "p6": "p2"}


def test_peers_that_cannot_be_dialled_are_leaves() -> None:
    parents = tree(origin(), node("hidden", dialable=False), node("a"), node("b"))
    assert parents == {"a": "origin", "b": "a", "hidden": "b"}


def test_a_newcomer_that_can_relay_takes_the_place_of_a_leaf() -> None:
    hidden, a = node("hidden", dialable=False), node("a")
    before = plan_tree([origin(), hidden], SHAPE, {})
    assert before == {"hidden": "origin"}
    assert tree(origin(), hidden, a, before=before) == {"a": "origin", "hidden": "a"}


def test_only_leaves_share_the_excess_between_origin_and_relays() -> None:
    hidden = [node(f"h{number}", dialable=False) for number in range(4)]
    parents = tree(origin(), node("a"), *hidden)
    assert sorted(parents.values()) == ["a", "a", "a", "origin", "origin"]


def test_an_origin_that_cannot_be_dialled_dials() -> None:
    parents = tree(origin(dialable=False), node("hidden", dialable=False), node("a"))
    assert parents == {"a": "origin", "hidden": "a"}
    assert tree(origin(dialable=False), node("hidden", dialable=False)) == {}


def test_a_quarantined_relay_becomes_a_leaf() -> None:
    before = plan_tree([origin(), node("a"), node("b"), node("c")], SHAPE, {})
    assert before is not None
    parents = tree(origin(), node("a", may_relay=False), node("b"), node("c"), before=before)
    assert parents == {"b": "origin", "a": "b", "c": "b"}


def test_a_leave_moves_only_the_children_of_the_one_that_left() -> None:
    nodes = [origin(), *(node(f"p{number}") for number in range(14))]
    before = plan_tree(nodes, SHAPE, {})
    assert before is not None
    after = plan_tree([one for one in nodes if one.peer_id != "p1"], SHAPE, before)
    assert after is not None
    moved = {child for child in after if after[child] != before[child]}
    assert moved == {child for child, parent in before.items() if parent == "p1"}


names = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(st.data(), names, st.booleans())
def test_every_plan_is_a_tree_and_joins_and_leaves_move_few(
    data: st.DataObject, kinds: list[tuple[bool, bool]], origin_dialable: bool
) -> None:
    root = origin(dialable=origin_dialable)
    peers = [node(f"p{i}", dialable=dialable, may_relay=may_relay) for i, (dialable, may_relay) in enumerate(kinds)]
    here: list[RelayNode] = [root]
    parents: dict[PeerId, PeerId] = {}
    for _ in range(20):
        peer = data.draw(st.sampled_from(peers))
        leaving = peer in here
        here = [one for one in here if one != peer] if leaving else [*here, peer]
        before, parents = parents, plan_tree(here, SHAPE, parents) or {}
        by_id = {one.peer_id: one for one in here}
        for child, parent in parents.items():
            assert by_id[parent] is root or by_id[parent].interior
            assert by_id[parent].address or by_id[child].address
        assert _connected(parents, root.peer_id)
        if origin_dialable:
            assert parents.keys() == by_id.keys() - {root.peer_id}
            moved = sum(before[child] != parents[child] for child in before.keys() & parents.keys())
            children_of_it = sum(parent == peer.peer_id for parent in before.values())
            assert moved <= children_of_it + 1


def _connected(parents: dict[PeerId, PeerId], root: PeerId) -> bool:
    for child in parents:
        seen: set[PeerId] = set()
        while child != root:
            if child in seen:
                return False
            seen.add(child)
            child = parents[child]
    return True


def planner() -> RelayPlanner:
    return RelayPlanner(SHAPE, fallbacks_max=2)


def at(name: str, role: str = "peer") -> Neighbour:
    """A neighbour that we dial."""
    return Neighbour(PeerId(name), role, f"{name}:1", True)


def dials_us(name: str, role: str = "peer") -> Neighbour:
    return Neighbour(PeerId(name), role, "", False)


def test_parts_say_who_dials_and_only_changed_ones_are_sent() -> None:
    plan = planner()
    assert plan.replan([node("a")]) == []
    assert plan.replan([origin(), node("a")]) == [
        SendPlan(PeerId("origin"), 1, (), (dials_us("a"),), ()),
        SendPlan(PeerId("a"), 1, (at("origin", "origin"),), (), ()),
    ]
    assert plan.replan([origin(), node("a"), node("b")]) == [
        SendPlan(PeerId("a"), 2, (at("origin", "origin"),), (dials_us("b"),), (at("b"),)),
        SendPlan(PeerId("b"), 2, (at("a"),), (), (at("origin", "origin"),)),
    ]
    assert plan.replan([origin(), node("a"), node("b")]) == []
    assert plan.parents_of(PeerId("b")) == ("a",)
    assert plan.parents_of(PeerId("origin")) == ()


def test_the_parent_dials_when_only_the_child_can_be_dialled() -> None:
    assert planner().replan([origin(dialable=False), node("a")]) == [
        SendPlan(PeerId("origin"), 1, (), (at("a"),), ()),
        SendPlan(PeerId("a"), 1, (dials_us("origin", "origin"),), (), ()),
    ]


def test_fallbacks_are_the_origin_then_ancestors_then_others_that_relay() -> None:
    plan = RelayPlanner(SHAPE, fallbacks_max=3)
    nodes = [origin(), node("a"), node("bad", may_relay=False), node("b"), node("c"), node("hidden", dialable=False)]
    sent = {part.peer_id: [one.peer_id for one in part.fallbacks] for part in plan.replan(nodes)}
    assert sent[PeerId("a")] == ["b", "c"]  # its parent is the origin
    assert sent[PeerId("c")] == ["origin", "b"]  # its parent is a
    assert sent[PeerId("bad")] == ["origin", "a", "c"]  # its parent is b: the next ancestor is a
    assert all("bad" not in sources and "hidden" not in sources for sources in sent.values())


def test_a_peer_may_receive_from_its_sources_of_now_and_of_just_before() -> None:
    plan = RelayPlanner(SHAPE, fallbacks_max=3)
    a, b, c = node("a"), node("b"), node("c")

    def sources_of_c() -> set[str]:
        return {name for name in ("origin", "a", "b", "d") if plan.may_receive_from(PeerId("c"), PeerId(name))}

    assert sources_of_c() == set()
    plan.replan([origin(), a, b, c])
    assert sources_of_c() == {"origin", "a", "b"}
    plan.replan([origin(), a, c])
    assert sources_of_c() == {"origin", "a", "b"}
    plan.replan([origin(), a, c, node("d")])
    assert sources_of_c() == {"origin", "a", "d"}
    plan.replan([origin(), a])
    assert sources_of_c() == set()


def test_a_new_session_is_told_again() -> None:
    plan = planner()
    plan.replan([origin(), node("a")])
    plan.forget(PeerId("a"))
    assert [part.peer_id for part in plan.replan([origin(), node("a")])] == ["a"]


def test_without_its_origin_a_plan_stays_until_it_returns() -> None:
    plan = planner()
    plan.replan([origin(), node("a"), node("b")])
    assert plan.replan([node("a"), node("b")]) == []
    assert [part.peer_id for part in plan.replan([node("a"), node("b"), origin()])] == ["origin"]
    assert plan.plan_id == 2
