from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.broadcast.plan_rate import depth_of, plan_rate
from capacity.model.broadcast_bound import fluid_rate
from coordinator.core.broadcast.mesh import plan_mesh
from coordinator.core.broadcast.nodes import Plan, RelayNode
from rollcast.wire.ids import PeerId, StripeId
from rollcast.wire.links.frames import DIRECT_STRIPE

MBIT = 1e6 / 8


def node(
    name: str,
    mbit_s: float,
    *,
    dialable: bool = True,
    may_relay: bool = True,
    metered: bool = False,
    down: float | None = None,
) -> RelayNode:
    address = f"{name}:1" if dialable else ""
    downlink = None if down is None else down * MBIT
    return RelayNode(
        PeerId(name),
        "peer",
        address,
        may_relay,
        mbit_s * MBIT,
        downlink_bytes_per_second=downlink,
        metered=metered,
    )


def origin(mbit_s: float, *, dialable: bool = True) -> RelayNode:
    return RelayNode(PeerId("origin"), "origin", "origin:1" if dialable else "", True, mbit_s * MBIT)


def uplinks(*nodes: RelayNode) -> dict[PeerId, float]:
    return {one.peer_id: one.uplink_bytes_per_second or 0.0 for one in nodes}


def made(root: RelayNode, *nodes: RelayNode) -> Plan:
    return plan_mesh(nodes, root, uplinks(root, *nodes), {})[0]


def stripes(plan: Plan) -> dict[int, dict[str, str]]:
    return {one.stripe: {str(child): str(parent) for child, parent in one.parents.items()} for one in plan.stripes}


@pytest.mark.parametrize(
    ("source", "peers"),
    [
        (50, [50] * 8),
        (50, [50] * 4 + [12.5] * 4),
        (60, [100, 100, 60, 60, 30, 30, 10, 10]),
        (10, [100, 3]),
        (500, [50] * 24),
    ],
)
def test_shares_in_proportion_to_uplinks_reach_the_fluid_bound(source: float, peers: list[float]) -> None:
    root, nodes = origin(source), [node(f"p{index}", rate) for index, rate in enumerate(peers)]
    plan = made(root, *nodes)
    bound = fluid_rate(source * MBIT, [rate * MBIT for rate in peers], [float("inf")] * len(peers))
    assert plan_rate(plan, uplinks(root, *nodes), {}) == pytest.approx(bound)
    assert plan.bytes_per_second == pytest.approx(bound)


def test_each_relay_passes_its_stripe_to_all_others_and_the_origin_sends_what_they_cannot() -> None:
    relayed = {
        1: {"a": "origin", "b": "a", "c": "a"},
        2: {"b": "origin", "a": "b", "c": "b"},
        3: {"c": "origin", "a": "c", "b": "c"},
    }
    assert stripes(made(origin(50), node("a", 50), node("b", 50), node("c", 50))) == relayed
    direct = {0: {"a": "origin", "b": "origin", "c": "origin"}}
    assert stripes(made(origin(80), node("a", 50), node("b", 50), node("c", 50))) == direct | relayed


def test_copies_of_its_own_are_left_out_only_where_the_relays_surely_suffice() -> None:
    three = [node(name, 50) for name in "abc"]  # they can pass 75 on
    assert DIRECT_STRIPE not in stripes(made(origin(68), *three))
    assert DIRECT_STRIPE in stripes(made(origin(70), *three))


def test_a_receiver_slower_than_the_plan_requests_chunks_and_relays_nothing() -> None:
    nodes = [node("a", 50), node("b", 50), node("slow", 50, down=10)]
    plan = made(origin(40), *nodes)
    assert plan.pullers == {"slow"}
    assert stripes(plan) == {
        1: {"a": "origin", "b": "a", "slow": "a"},
        2: {"b": "origin", "a": "b", "slow": "b"},
    }
    assert plan.list_parents[PeerId("slow")] != "origin"
    rates = uplinks(origin(40), *nodes)
    bound = fluid_rate(40 * MBIT, [50 * MBIT] * 3, [math.inf, math.inf, 10 * MBIT])
    assert plan_rate(plan, rates, {PeerId("slow"): 10 * MBIT}) == pytest.approx(bound)


def test_some_member_is_pushed_to_however_slow_all_are() -> None:
    plan = made(origin(1000), node("a", 50, down=20), node("b", 50, down=10))
    assert plan.pullers == {"b"}
    assert made(origin(1000), node("a", 50, down=20)).pullers == set()


def test_one_peer_needs_no_relay() -> None:
    assert stripes(made(origin(50), node("a", 50))) == {0: {"a": "origin"}}
    assert stripes(made(origin(50))) == {}


def test_slow_metered_and_resting_peers_are_leaves() -> None:
    nodes = [node("a", 50), node("b", 50), node("slow", 1), node("metered", 50, metered=True)]
    plan = made(origin(50), *nodes, node("resting", 50, may_relay=False))
    assert {stripe.parents[PeerId("slow")] for stripe in plan.stripes} == {"origin", "a", "b"}
    assert {parent for stripe in plan.stripes for parent in stripe.parents.values()} == {"origin", "a", "b"}


def test_all_relay_where_all_are_slow_but_metered_ones_never() -> None:
    assert set(stripes(made(origin(50), node("a", 0.01), node("b", 0.02)))) == {0, 1, 2}
    assert set(stripes(made(origin(50), node("a", 50, metered=True), node("b", 50, metered=True)))) == {0}


def test_peers_behind_nat_relay_only_if_the_others_cannot_do_it_alone() -> None:
    fast = [node("a", 100), node("b", 100)]
    hidden = [node("h", 50, dialable=False), node("i", 50, dialable=False)]
    assert set(stripes(made(origin(50), *fast, *hidden))) == {1, 2}
    slow = [node("a", 10), node("b", 10)]
    plan = stripes(made(origin(50), *slow, *hidden))
    assert set(plan) == {0, 1, 2, 3, 4}
    assert plan[3] == {"h": "origin", "a": "h", "b": "h", "i": "a"}  # they reach each other through a, or b
    assert plan[4] == {"i": "origin", "a": "i", "b": "i", "h": "b"}


def test_behind_nat_all_of_them_there_is_only_the_origin() -> None:
    hidden = [node("h", 50, dialable=False), node("i", 50, dialable=False)]
    assert set(stripes(made(origin(50), *hidden))) == {0}
    assert stripes(made(origin(50, dialable=False), *hidden)) == {}


def test_holes_let_peers_behind_nat_relay_to_each_other() -> None:
    hidden = [replace(node(name, 50, dialable=False), hole=2) for name in "hi"]
    assert stripes(made(origin(50), *hidden)) == {
        1: {"h": "origin", "i": "h"},
        2: {"i": "origin", "h": "i"},
    }
    apart = [replace(hidden[0], avoid=frozenset({PeerId("i")})), replace(hidden[1], avoid=frozenset({PeerId("h")}))]
    assert set(stripes(made(origin(50), *apart))) == {0}


def test_behind_one_router_they_relay_to_each_other_in_their_network() -> None:
    home = [replace(node(name, 50, dialable=False), site="x", local_address=f"{name}:2") for name in "hi"]
    assert stripes(made(origin(50), *home)) == {
        1: {"h": "origin", "i": "h"},
        2: {"i": "origin", "h": "i"},
    }
    assert set(stripes(made(origin(50), home[0], replace(home[1], site="y")))) == {0}


def test_members_that_no_hole_reaches_get_another_relay() -> None:
    a, b, s = (replace(node(name, 50, dialable=False), hole=hole) for name, hole in (("a", 2), ("b", 3), ("s", 1)))
    plan = stripes(made(origin(50), a, b, s))
    assert plan[1] == {"a": "origin", "b": "a", "s": "b"}
    assert plan[2] == {"b": "origin", "a": "b", "s": "b"}


def helped(plan: Plan, helpers: int) -> list[int]:
    """Return the copies of others' stripes that each of the first nodes passes on; their own stripes come first."""
    others = [tree for number, tree in stripes(plan).items() if number > helpers]
    return [sum(parent == name for tree in others for parent in tree.values()) for name in "abcd"[:helpers]]


def test_helpers_of_others_stripes_share_the_load_in_proportion_to_their_uplinks() -> None:
    hidden = [replace(node(f"s{index}", 50, dialable=False), hole=1) for index in range(4)]
    assert helped(made(origin(50), *(node(name, 50) for name in "abcd"), *hidden), 4) == [3, 3, 3, 3]
    unlike = [node(name, rate) for name, rate in zip("abcd", (100, 50, 25, 25), strict=True)]
    assert helped(made(origin(50), *unlike, *hidden), 4) == [7, 3, 1, 1]


def test_a_member_that_reaches_less_than_half_relays_only_where_none_reaches_more() -> None:
    hidden = [replace(node(f"s{index}", 50, dialable=False), hole=1) for index in range(4)]
    assert set(stripes(made(origin(50), node("a", 50), node("b", 50), *hidden))) == {0, 1, 2}
    dialable = node("a", 50, may_relay=False)
    assert set(stripes(made(origin(50), dialable, *hidden))) == {1, 2, 3, 4}


def test_libp2p_relays_serve_members_that_cannot_be_reached_otherwise() -> None:
    circuits = ("/ip4/192.0.2.1/tcp/4001/p2p/R/p2p-circuit/p2p/T",)
    root = replace(origin(50, dialable=False), circuits=circuits)
    hidden = [replace(node(name, 50, dialable=False), hole=1, circuits=circuits) for name in "hi"]
    plan = made(root, *hidden)
    assert stripes(plan) == {0: {"h": "origin", "i": "origin"}}
    assert plan.list_parents == {PeerId("h"): root.peer_id, PeerId("i"): root.peer_id}
    with_relay = made(root, node("a", 50), *hidden)
    assert stripes(with_relay) == {1: {"a": "origin", "h": "a", "i": "a"}}


def test_an_origin_that_cannot_be_dialled_sends_no_direct_copies_to_those_it_cannot_reach() -> None:
    root = origin(50, dialable=False)
    plan = made(root, node("a", 50), node("h", 50, dialable=False))
    assert stripes(plan) == {1: {"a": "origin", "h": "a"}}
    assert plan.list_parents == {PeerId("a"): root.peer_id, PeerId("h"): PeerId("a")}
    metered = made(root, node("m", 50, metered=True), node("h", 50, dialable=False))
    assert stripes(metered) == {1: {"m": "origin", "h": "m"}}  # nobody else can


def test_a_relay_keeps_its_stripe_and_none_gets_anothers() -> None:
    root, nodes = origin(50), [node(name, 50) for name in "abc"]
    _, before = plan_mesh(nodes, root, uplinks(root, *nodes), {})
    now = [nodes[0], nodes[2], node("d", 50)]
    _, after = plan_mesh(now, root, uplinks(root, *now), before)
    assert before == {"a": 1, "b": 2, "c": 3}
    assert after == {"a": 1, "c": 3, "d": 4}
    used_up = {PeerId("a"): StripeId(2**15 - 1), PeerId("c"): StripeId(1)}
    assert plan_mesh(now, root, uplinks(root, *now), used_up)[1] == {"a": 2**15 - 1, "c": 1, "d": 2}


def test_lists_go_to_a_few_and_through_them_to_the_rest() -> None:
    nodes = [node(f"p{index:02}", 50 + index) for index in range(20)]
    parents = made(origin(50), *nodes).list_parents
    first = {child for child, parent in parents.items() if parent == "origin"}
    assert first == {f"p{index:02}" for index in range(12, 20)}
    assert set(parents) == {one.peer_id for one in nodes}
    assert set(parents.values()) == {*first, "origin"}


kinds = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0.1, 5, 50, 500])), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None)
@given(kinds, st.booleans())
def test_every_stripe_is_a_tree_along_possible_links(
    drawn: list[tuple[bool, bool, bool, float]], origin_dialable: bool
) -> None:
    root = origin(50, dialable=origin_dialable)
    nodes = [
        node(f"p{index}", rate, dialable=dialable, may_relay=may_relay, metered=metered)
        for index, (dialable, may_relay, metered, rate) in enumerate(drawn)
    ]
    by_id = {one.peer_id: one for one in (root, *nodes)}
    plan = made(root, *nodes)
    for parents in (*(stripe.parents for stripe in plan.stripes), plan.list_parents):
        for child, parent in parents.items():
            assert by_id[child].reaches(by_id[parent])
            assert by_id[parent].may_relay
        assert depth_of(parents, root.peer_id) <= 3
        if origin_dialable:
            assert set(parents) == set(by_id) - {root.peer_id}
    if plan.stripes:
        assert sum(stripe.share for stripe in plan.stripes) == pytest.approx(1.0)
        assert DIRECT_STRIPE not in stripes(plan) or all(root.reaches(one) for one in nodes)
        sustained = plan_rate(plan, uplinks(root, *nodes), {})
        assert sustained == pytest.approx(plan.bytes_per_second)


def test_a_relay_does_not_send_to_a_member_that_gave_it_up() -> None:
    root, c = origin(1.0), node("c", 1.0)
    a = replace(node("a", 1.0), given_up=frozenset({PeerId("b")}))
    b = replace(node("b", 1.0), given_up=frozenset({PeerId("a")}))
    plan = plan_mesh([a, b, c], root, uplinks(root, a, b, c), {})[0]
    assert len(plan.stripes) >= 3
    for stripe in plan.stripes:
        assert set(stripe.parents) == {a.peer_id, b.peer_id, c.peer_id}
        assert {(a.peer_id, b.peer_id), (b.peer_id, a.peer_id)}.isdisjoint(stripe.parents.items())
