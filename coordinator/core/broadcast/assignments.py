"""Turn a plan into each member's assignment: its links, which end dials, and its children in each stripe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.core.broadcast.heirs import Succession, find_heirs
from coordinator.core.broadcast.nodes import Parents, Plan, PlanShape, RelayNode, Stripe
from coordinator.core.events.actions import Assignment, Neighbour, StripeAssignment
from rollcast.wire.ids import PeerId, StripeId
from rollcast.wire.links.frames import DIRECT_STRIPE
from rollcast.wire.reach_words import PUNCH

_NO_PEERS: frozenset[PeerId] = frozenset()

# The other end; whether this one dials, may be told its address, is in its local network, and punches a hole.
NeighbourKey = tuple[PeerId, bool, bool, bool, bool]


class _Edges:
    """Index a plan's edges by their ends."""

    def __init__(self, plan: Plan, by_id: Mapping[PeerId, RelayNode]) -> None:
        self.sources: dict[PeerId, set[PeerId]] = {}  # child -> the members that send it chunks
        self.above: dict[PeerId, set[PeerId]] = {}  # child -> the same, and its parent for announcements and lists
        self.below: dict[PeerId, set[PeerId]] = {}
        # parent -> its children by stripe, and how many of them are parents themselves; these come first
        self.relays: dict[PeerId, list[tuple[Stripe, list[PeerId], int]]] = {}
        self.successions: dict[StripeId, Succession] = {}
        for stripe in plan.stripes:
            _add(self.above, stripe.parents)
            pushed = {child: parent for child, parent in stripe.parents.items() if child not in plan.pullers}
            _add(self.sources, pushed)
            for parent, children in children_of(stripe.parents).items():
                self.below.setdefault(parent, set()).update(children)
            if stripe.stripe != DIRECT_STRIPE:
                children_by_parent = children_of(pushed)
                for parent, children in children_by_parent.items():
                    children.sort(key=lambda child: (child not in children_by_parent, child))
                    relays = sum(child in children_by_parent for child in children)
                    self.relays.setdefault(parent, []).append((stripe, children, relays))
                self.successions[stripe.stripe] = succession = find_heirs(children_by_parent, by_id)
                self._link_heirs(succession)
        _add(self.above, plan.list_parents)
        self.lists = children_of(plan.list_parents)
        for parent, children in self.lists.items():
            self.below.setdefault(parent, set()).update(children)

    def _link_heirs(self, succession: Succession) -> None:
        _add(self.above, succession.guardians)
        for heir, guardian in succession.guardians.items():
            self.below.setdefault(guardian, set()).add(heir)
        for heir, adopted in succession.adopted.items():
            _add(self.above, dict.fromkeys(adopted, heir))
            self.below.setdefault(heir, set()).update(adopted)


def children_of(parents: Parents) -> dict[PeerId, list[PeerId]]:
    """Return each parent's children, in the order in which ``parents`` has them."""
    children: dict[PeerId, list[PeerId]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    return children


def _add(above: dict[PeerId, set[PeerId]], parents: Parents) -> None:
    for child, parent in parents.items():
        if child in above:
            above[child].add(parent)
        else:
            above[child] = {parent}


class AssignmentMaker:
    """Makes the assignments of all members for one plan.

    Neighbours that did not change since the plan before stay the same objects, so that comparing assignments is fast.

    Attributes:
        neighbours: those of this plan, once it is made.
    """

    def __init__(self, shape: PlanShape, before: Mapping[NeighbourKey, Neighbour]) -> None:
        """``before``: the neighbours of the plan before."""
        self._fallbacks_max = shape.fallbacks_max
        self._mirrors = tuple(
            Neighbour(PeerId(f"mirror-{number}"), "mirror", url, True) for number, url in enumerate(shape.mirrors)
        )
        self.neighbours: dict[NeighbourKey, Neighbour] = {}
        self._before = before

    def make(self, nodes: Sequence[RelayNode], plan: Plan) -> dict[PeerId, Assignment]:
        """Return the assignments of all members, the root included, in the order in which they joined."""
        by_id = {node.peer_id: node for node in nodes}
        edges = _Edges(plan, by_id)
        return {node.peer_id: self._part(node, plan, edges, by_id) for node in nodes}

    def _part(self, node: RelayNode, plan: Plan, edges: _Edges, by_id: Mapping[PeerId, RelayNode]) -> Assignment:
        own_id = node.peer_id
        above, below = edges.above.get(own_id, _NO_PEERS), edges.below.get(own_id, _NO_PEERS)
        links = sorted(above | below)  # sorted, so that the order in which members joined or rejoined changes nothing
        index_of = dict(zip(links, range(len(links)), strict=True))
        sources = edges.sources.get(own_id, _NO_PEERS)
        is_root = own_id == plan.root
        return Assignment(
            neighbours=tuple(
                [self._neighbour(node, by_id[one], is_above=one in above, is_below=one in below) for one in links]
            ),
            stripes=tuple(
                [
                    _stripe_part(own_id, stripe, children, relays, edges, plan.bytes_per_second, index_of)
                    for stripe, children, relays in edges.relays.get(own_id, ())
                ]
            ),
            list_children=tuple(sorted([index_of[child] for child in edges.lists.get(own_id, ())])),
            parents=tuple(sorted([index_of[one] for one in sources])),
            fallbacks=self._mirrors if is_root else self._fallbacks(node, plan, by_id, index_of),
            direct_copies=is_root and any(one.stripe == DIRECT_STRIPE for one in plan.stripes),
        )

    def _neighbour(self, node: RelayNode, other: RelayNode, *, is_above: bool, is_below: bool) -> Neighbour:
        """Return the other end of a link of the plan: the child dials if its parent has an address.

        Of two members that are each other's parent, the one with the larger id dials. Where neither has an address, the
        one with the larger id asks for the hole punch, or dials through the relay.
        """
        named, dials_back = node.can_dial(other), other.can_dial(node)
        if named and dials_back:
            dials = node.peer_id > other.peer_id if is_above and is_below else is_above
        else:
            dials = named or (not dials_back and node.peer_id > other.peer_id)
        return self._named(node, other, dials=dials, named=named, dials_back=dials_back)

    def _named(self, node: RelayNode, other: RelayNode, *, dials: bool, named: bool, dials_back: bool) -> Neighbour:
        """Return the other end of a link; ``named`` and ``dials_back``: whether each may be told the other's address.

        The same pair is looked at for each plan, and large plans have a hundred thousand of them.
        """
        lan = node.site != "" and node.site == other.site
        punch = not (named or dials_back) and node.reaches(other)  # or in the local network
        key = (other.peer_id, dials, named, lan, punch)
        known = self.neighbours.get(key)
        if known is None:
            direct = other.address if named else ""
            known, address = self._before.get(key), _address(other, direct, dials=dials, lan=lan, punch=punch)
            if known is None or known.address != address or known.role != other.role:
                known = Neighbour(other.peer_id, other.role, address, dials, lan)
            self.neighbours[key] = known
        return known

    def _fallbacks(
        self, node: RelayNode, plan: Plan, by_id: Mapping[PeerId, RelayNode], links: Mapping[PeerId, int]
    ) -> tuple[Neighbour, ...]:
        """Return a member's fallback sources: its parents' parents, as they hold chunks sooner, the origin, mirrors."""
        root, own_id = plan.root, node.peer_id
        with_root = root not in links and _can_ask(node, by_id[root])
        usable: list[PeerId] = []
        for stripe in plan.stripes:
            if len(usable) >= self._fallbacks_max - with_root:
                break
            parent = stripe.parents.get(own_id, root)
            one = stripe.parents.get(parent, root)
            if one not in links and one != root and one != own_id and one not in usable:
                other = by_id[one]
                if other.may_relay and _can_ask(node, other):
                    usable.append(one)
        if with_root and self._fallbacks_max:
            usable.append(root)
        return (*[self._fallback(node, by_id[one]) for one in usable], *self._mirrors)

    def _fallback(self, node: RelayNode, other: RelayNode) -> Neighbour:
        named, dials_back = node.can_dial(other), other.can_dial(node)
        return self._named(node, other, dials=True, named=named, dials_back=dials_back)


def _stripe_part(
    own_id: PeerId,
    stripe: Stripe,
    children: Sequence[PeerId],
    relays: int,
    edges: _Edges,
    bytes_per_second: float,
    index_of: Mapping[PeerId, int],
) -> StripeAssignment:
    succession = edges.successions[stripe.stripe]
    adopted = succession.adopted.get(own_id, ())
    return StripeAssignment(
        stripe.stripe,
        tuple([index_of[child] for child in children]),
        stripe.share * bytes_per_second,
        tuple([(index_of[child], index_of[heir]) for child, heir in succession.heirs.get(own_id, ())]),
        tuple([index_of[one] for one in adopted]),
        index_of[succession.guardians[own_id]] if adopted else -1,
        relays,
    )


def _can_ask(node: RelayNode, other: RelayNode) -> bool:
    """Whether a member can open a link to another one itself."""
    if other.peer_id in node.given_up:
        return False
    return node.can_dial(other) or (not other.can_dial(node) and (node.reaches(other) or node.is_relayed_to(other)))


def _address(other: RelayNode, direct: str, *, dials: bool, lan: bool, punch: bool) -> str:
    """Return the addresses at which to dial a member, separated by spaces, the best one first.

    ``direct`` are those of its addresses that the dialling member may be told.

    Relays come last, because every byte passes them twice. The result is empty if the other member dials, unless the
    link may need a hole punch, for which both ends dial. Only members of its site receive a member's address in the
    local network; if dialing there fails, a hole punch is requested next, which also reports the failure to us.
    """
    if not dials:
        return PUNCH if punch else ""
    ways = direct or " ".join([PUNCH, *other.circuits] if punch else other.circuits)
    if not lan or not other.local_address or other.local_address in ways.split(" "):
        return ways
    return f"{other.local_address} {ways}".rstrip()
