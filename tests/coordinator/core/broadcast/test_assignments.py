from __future__ import annotations

from dataclasses import replace

from coordinator.core.broadcast.assignments import AssignmentMaker
from coordinator.core.broadcast.nodes import Plan, PlanShape, RelayNode, Stripe
from coordinator.core.events.actions import Assignment, Neighbour, StripeAssignment
from rollcast.wire.address_scope import Scope
from rollcast.wire.ids import PeerId, StripeId
from rollcast.wire.links.frames import DIRECT_STRIPE

ROOT, A, B, C, H = (PeerId(name) for name in ("0", "a", "b", "c", "h"))


def node(peer_id: PeerId, *, dialable: bool = True, site: str = "", may_relay: bool = True) -> RelayNode:
    role = "origin" if peer_id == ROOT else "peer"
    return RelayNode(peer_id, role, f"{peer_id}:1" if dialable else "", may_relay, site=site)


def at(peer_id: PeerId, *, lan: bool = False) -> Neighbour:
    """Return a neighbour that we dial."""
    return Neighbour(peer_id, "origin" if peer_id == ROOT else "peer", f"{peer_id}:1", True, lan)


def dials_us(peer_id: PeerId, *, lan: bool = False) -> Neighbour:
    return Neighbour(peer_id, "origin" if peer_id == ROOT else "peer", "", False, lan)


def parts(plan: Plan, *nodes: RelayNode, **shape: object) -> dict[PeerId, Assignment]:
    return AssignmentMaker(PlanShape(**shape), {}).make(nodes, plan)  # type: ignore[arg-type]


MESH = Plan(
    ROOT,
    "mesh",
    (
        Stripe(DIRECT_STRIPE, {A: ROOT, B: ROOT, H: ROOT}, 0.25),
        Stripe(StripeId(1), {A: ROOT, B: A, H: A}, 0.5),
        Stripe(StripeId(2), {B: ROOT, A: B, H: B}, 0.25),
    ),
    100.0,
    {A: ROOT, B: ROOT, H: A},
)


def test_in_a_mesh_all_are_linked_to_relays_and_origin_and_leaves_are_not_to_each_other() -> None:
    made = parts(MESH, node(ROOT), node(A), node(B), node(H, dialable=False))
    assert made[ROOT] == Assignment(
        neighbours=(dials_us(A), dials_us(B), dials_us(H)),
        stripes=(
            StripeAssignment(StripeId(1), (0,), 50.0, relays=1),
            StripeAssignment(StripeId(2), (1,), 25.0, relays=1),
        ),
        list_children=(0, 1),
        direct_copies=True,
    )
    assert made[A] == Assignment(
        neighbours=(at(ROOT), dials_us(B), dials_us(H)),
        stripes=(StripeAssignment(StripeId(1), (1, 2), 50.0),),
        list_children=(2,),
        parents=(0, 1),
    )
    assert made[B].neighbours == (at(ROOT), at(A), dials_us(H))
    assert made[H] == Assignment(neighbours=(at(ROOT), at(A), at(B)), parents=(0, 1, 2))


def test_children_that_pass_a_stripe_on_are_named_before_leaves() -> None:
    tree = {C: ROOT, A: C, B: C, H: B}
    made = parts(Plan(ROOT, "trees", (Stripe(StripeId(1), tree, 1.0),), 0.0, tree), *map(node, (ROOT, A, B, C, H)))
    stripe = made[C].stripes[0]
    assert [made[C].neighbours[index].peer_id for index in stripe.children] == [B, A]
    assert stripe.relays == 1


def test_the_parent_dials_when_only_the_child_can_be_dialled() -> None:
    plan = Plan(ROOT, "trees", (Stripe(StripeId(1), {A: ROOT, B: A}, 1.0),), 0.0, {A: ROOT, B: A})
    made = parts(plan, node(ROOT, dialable=False), node(A), node(B))
    assert made[ROOT].neighbours == (at(A),)
    assert made[A].neighbours == (dials_us(ROOT), dials_us(B))


def test_neighbours_of_one_site_are_in_one_lan() -> None:
    plan = Plan(ROOT, "trees", (Stripe(StripeId(1), {A: ROOT, B: A, C: A}, 1.0),), 0.0, {A: ROOT, B: A, C: A})
    made = parts(plan, node(ROOT), node(A, site="x"), node(B, site="x"), node(C, site="y"))
    assert made[A].neighbours == (at(ROOT), dials_us(B, lan=True), dials_us(C))
    assert made[B].neighbours == (at(A, lan=True),)


def test_fallbacks_are_parents_of_parents_then_the_origin_then_mirrors() -> None:
    chain = {A: ROOT, B: A, C: B}
    plan = Plan(ROOT, "trees", (Stripe(StripeId(1), chain, 1.0),), 0.0, chain)
    mirror = Neighbour(PeerId("mirror-0"), "mirror", "https://m/x", True)
    nodes = [node(peer_id) for peer_id in (ROOT, A, B, C)]
    made = parts(plan, *nodes, mirrors=("https://m/x",))
    assert made[C].fallbacks == (at(A), at(ROOT), mirror)
    assert at(ROOT) in made[B].neighbours, "because it is the heir of its parent"
    assert made[B].fallbacks == made[A].fallbacks == made[ROOT].fallbacks == (mirror,)
    assert parts(plan, *nodes, fallbacks_max=1)[C].fallbacks == (at(ROOT),)
    nodes[1] = node(A, may_relay=False)
    assert parts(plan, *nodes)[C].fallbacks == (at(ROOT),)


def test_a_neighbour_is_the_same_object_in_the_next_plan_until_its_address_changes() -> None:
    first, nodes = AssignmentMaker(PlanShape(), {}), [node(ROOT), node(A), node(B), node(H, dialable=False)]
    before = first.make(nodes, MESH)[H].neighbours
    second = AssignmentMaker(PlanShape(), first.neighbours)
    after = second.make(nodes, MESH)[H].neighbours
    assert all(one is other for one, other in zip(before, after, strict=True))
    third = AssignmentMaker(PlanShape(), second.neighbours)
    moved = [replace(one, address="elsewhere:1") if one.peer_id == A else one for one in nodes]
    addresses = {one.peer_id: one.address for one in third.make(moved, MESH)[H].neighbours}
    assert addresses == {ROOT: "0:1", A: "elsewhere:1", B: "b:1"}


CIRCUIT = "/ip4/192.0.2.1/tcp/4001/p2p/R/p2p-circuit/p2p/T"


def hidden(peer_id: PeerId, hole: int, *circuits: str) -> RelayNode:
    return replace(node(peer_id, dialable=False), hole=hole, circuits=circuits)


def test_of_two_behind_nat_the_larger_id_asks_for_a_hole_and_has_circuits_beside_it() -> None:
    made = parts(MESH, node(ROOT), hidden(A, 2, CIRCUIT), hidden(B, 2), node(H, dialable=False))
    assert made[B].neighbours == (at(ROOT), Neighbour(A, "peer", f"punch {CIRCUIT}", True), dials_us(H))
    assert made[A].neighbours == (at(ROOT), Neighbour(B, "peer", "punch", False), dials_us(H))


def at_home(one: RelayNode) -> RelayNode:
    return replace(one, site="x", local_address=f"192.168.1.{ord(one.peer_id)}:7420")


def test_of_two_in_one_local_network_one_dials_there_first_and_has_the_other_ways_too() -> None:
    made = parts(MESH, node(ROOT), at_home(hidden(A, 1, CIRCUIT)), at_home(hidden(B, 1)), node(H))
    address = f"192.168.1.{ord('a')}:7420 punch {CIRCUIT}"
    assert made[B].neighbours[1] == Neighbour(A, "peer", address, True, True)
    assert made[A].neighbours[1] == Neighbour(B, "peer", "punch", False, True)
    assert "192.168" not in repr((made[ROOT], made[H]))


def test_a_mapped_port_is_dialled_from_inside_where_the_router_does_not_turn_it_round() -> None:
    made = parts(
        MESH, node(ROOT), at_home(replace(node(A), address="h:1 /ip4/192.0.2.1/tcp/1")), at_home(node(B)), node(H)
    )
    assert made[B].neighbours[1].address == f"192.168.1.{ord('a')}:7420 h:1 /ip4/192.0.2.1/tcp/1"
    assert "192.168" not in repr(made[ROOT])


def test_an_address_that_is_local_already_is_named_once() -> None:
    local = replace(at_home(node(A)), address=at_home(node(A)).local_address)
    assert parts(MESH, node(ROOT), local, at_home(node(B)), node(H))[B].neighbours[1].address == local.address


def test_where_no_hole_opens_a_circuit_is_dialled() -> None:
    made = parts(MESH, node(ROOT), hidden(A, 1, CIRCUIT), hidden(B, 1, CIRCUIT), node(H))
    assert made[B].neighbours[1] == Neighbour(A, "peer", CIRCUIT, True)


def test_one_that_can_be_dialled_needs_no_other_way() -> None:
    made = parts(MESH, node(ROOT), replace(node(A), hole=3, circuits=(CIRCUIT,)), hidden(B, 3, CIRCUIT), hidden(H, 0))
    assert made[B].neighbours == (at(ROOT), at(A), dials_us(H))


def test_a_fallback_may_be_reached_through_a_hole() -> None:
    chain = (Stripe(StripeId(1), {C: ROOT, B: C, A: B}, 1.0),)
    plan = Plan(ROOT, "trees", chain, 100.0, dict(chain[0].parents))
    made = parts(plan, node(ROOT), hidden(A, 2), node(B), hidden(C, 2, CIRCUIT))
    assert made[A].fallbacks == (Neighbour(C, "peer", f"punch {CIRCUIT}", True), at(ROOT))
    apart = replace(hidden(A, 2), avoid=frozenset({C}))
    assert parts(plan, node(ROOT), apart, node(B), hidden(C, 2, CIRCUIT))[A].fallbacks == (at(ROOT),)


def test_a_private_address_is_told_within_private_networks_alone() -> None:
    private = {"scope": Scope.PRIVATE, "home": Scope.PRIVATE}
    made = parts(MESH, node(ROOT), replace(node(A), **private), node(B), replace(node(H), **private))  # type: ignore[arg-type]
    assert dials_us(A) in made[B].neighbours, "A may dial B"
    assert at(B) in made[A].neighbours
    assert at(A) in made[H].neighbours
    assert at(A) not in made[B].neighbours


def test_a_member_is_no_fallback_of_one_that_gave_it_up() -> None:
    chain = Plan(ROOT, "trees", (Stripe(StripeId(1), {A: ROOT, B: A, C: B}, 1.0),), 1.0, {A: ROOT, B: A, C: B})
    nodes = [node(ROOT), node(A), node(B), node(C)]
    assert at(A) in parts(chain, *nodes)[C].fallbacks
    nodes[3] = replace(nodes[3], given_up=frozenset({A}))
    assert at(A) not in parts(chain, *nodes)[C].fallbacks


def test_a_puller_is_linked_with_its_parents_and_sent_nothing_but_lists() -> None:
    plan = replace(MESH, stripes=MESH.stripes[1:], pullers=frozenset({H}), list_parents={A: ROOT, B: ROOT, H: A})
    made = parts(plan, node(ROOT), node(A), node(B), node(H))
    assert [one.peer_id for one in made[H].neighbours] == [A, B]
    assert (made[H].parents, [one.peer_id for one in made[H].fallbacks]) == ((), [ROOT])
    assert H not in [one.peer_id for one in made[ROOT].neighbours]
    assert [made[A].neighbours[child].peer_id for child in made[A].stripes[0].children] == [B]
    assert [made[A].neighbours[child].peer_id for child in made[A].list_children] == [H]
