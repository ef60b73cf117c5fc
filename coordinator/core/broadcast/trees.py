"""Plan for many members: interior-disjoint trees of bounded degree, one a stripe, that change as little as possible.

Every relay is interior in one stripe and a leaf in the others, so that its whole uplink carries its own stripe. Trees
are filled level by level, the strongest relays first. Source: SplitStream (Castro et al. 2003) for the shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from coordinator.core.broadcast.nodes import Parents, Plan, RelayNode, Stripe, slower_than
from coordinator.core.broadcast.tree_groups import Groups, in_one_lan, make_groups
from coordinator.core.reach.holes import CLASSES, can_punch
from rollcast.wire.address_scope import may_be_named
from rollcast.wire.ids import PeerId, StripeId

_DETOUR_HOPS = 2  # a nearby parent may be this many hops deeper than the shallowest one
_ROUNDING = 1e-9  # copies; absorbs the rounding of sums of shares

Place = tuple[int, int, int]  # depth, order, index of a node with copies to spare


@dataclass(slots=True)
class _Members:
    """Holds the members as arrays, the root first, with the data that all stripes share."""

    ids: list[PeerId]
    dialable: list[bool]
    sites: list[str]
    regions: list[str]
    costs: list[float]
    index_of: dict[PeerId, int] = field(default_factory=dict)
    rtts: list[float] = field(default_factory=list)
    holes: list[int] = field(default_factory=list)
    avoid: dict[int, frozenset[PeerId]] = field(default_factory=dict)  # members to which a link failed lately, by index
    lans: list[str] = field(default_factory=list)
    nodes: Sequence[RelayNode] = ()
    picky: frozenset[int] = frozenset()  # members that some others cannot have as parents although these have room


def plan_trees(
    nodes: Sequence[RelayNode],
    root: RelayNode,
    uplinks: Mapping[PeerId, float],
    stripes: int,
    before: tuple[Plan, Groups] | None,
) -> tuple[Plan, Groups]:
    """Return the plan, and the groups of members that relay each stripe.

    Args:
        nodes: members without the root, in the order they joined.
        uplinks: uplink of every member, the root included, in bytes a second.
        before: the previous result, of which every edge that is still possible is kept; None for a first plan.
    """
    groups = make_groups(in_one_lan(nodes, root), root, uplinks, stripes, None if before is None else before[1])
    all_nodes = [root, *nodes]
    members = _Members(
        ids=[node.peer_id for node in all_nodes],
        dialable=[bool(node.address) for node in all_nodes],
        sites=[node.site for node in all_nodes],
        regions=[node.region for node in all_nodes],
        costs=[groups.costs.get(node.peer_id, 1.0) for node in all_nodes],
        index_of={node.peer_id: index for index, node in enumerate(all_nodes)},
        rtts=[node.rtt_s for node in all_nodes],
        holes=[node.hole for node in all_nodes],
        avoid={index: node.avoid for index, node in enumerate(all_nodes) if node.avoid},
        lans=[node.lan for node in all_nodes],
        nodes=all_nodes,
        picky=_picky(all_nodes),
    )
    capacities = [[0.0] * len(all_nodes) for _ in range(stripes)]
    for peer_id, stripe in groups.stripe_of.items():
        capacities[stripe][members.index_of[peer_id]] = float(groups.copies[peer_id])
    planned = []
    for stripe in range(stripes):
        capacities[stripe][0] = float(groups.root_copies[stripe])
        old = before[0].stripes[stripe].parents if before is not None and stripe < len(before[0].stripes) else {}
        parents = _Tree(members, capacities[stripe]).grow(old)
        planned.append(Stripe(StripeId(stripe + 1), parents, 1 / stripes))
    rate = groups.bytes_per_second
    pullers = slower_than(rate, nodes).difference(groups.stripe_of)
    return Plan(root.peer_id, "trees", tuple(planned), rate, planned[0].parents, pullers), groups


def _picky(nodes: Sequence[RelayNode]) -> frozenset[int]:
    """Return the indices of members that gave up a link, or cannot be told the addresses of some others."""
    narrowest, widest = min(node.scope for node in nodes), max(node.home for node in nodes)
    if not may_be_named(narrowest, widest):
        return frozenset(range(len(nodes)))
    return frozenset(index for index, node in enumerate(nodes) if node.given_up)


class _Tree:
    """Grows one stripe's tree: keeps edges of the previous plan, then attaches the other members one by one."""

    def __init__(self, members: _Members, capacities: list[float]) -> None:
        count = len(members.ids)
        self.members = members
        self.capacities = capacities
        self.spare = list(capacities)
        self.parents = [-1] * count
        self.children: list[list[int]] = [[] for _ in range(count)]
        self.depths = [-1] * count  # hops from the root; -1 while not connected to it
        self.places: list[Place] = []  # under members that can be dialled
        self.hidden_places: list[list[Place]] = [[] for _ in range(CLASSES)]  # under the others, by class of hole
        self.by_lan: dict[str, list[Place]] = {}  # under hidden members that others of their site can dial
        self.by_site: dict[str, list[Place]] = {}
        self.by_region: dict[str, list[Place]] = {}
        self.overloaded: list[tuple[float, int, int]] | None = None

    def grow(self, before: Parents) -> Parents:
        """Return the parent of every member that can be reached, keeping edges of ``before``."""
        order = self._order()
        self._keep(order, before)
        self._connect(0, 0)
        waiting = [child for child in order if self.parents[child] < 0]
        for child in waiting:
            self._attach(child)
        ids = self.members.ids
        return {ids[child]: ids[parent] for child, parent in enumerate(self.parents) if parent >= 0}

    def _order(self) -> list[int]:
        """Return the members' indices: relays first, the strongest foremost and those behind NAT last; then leaves."""
        capacities, dialable, rtts = self.capacities, self.members.dialable, self.members.rtts
        holes = self.members.holes
        relays = [index for index in range(1, len(capacities)) if capacities[index] > 0]
        relays.sort(key=lambda index: (not dialable[index], -capacities[index], rtts[index]))
        leaves = [index for index in range(1, len(capacities)) if capacities[index] <= 0]
        # Leaves that fewer members can reach come later: those before them fill the places that these cannot use.
        leaves.sort(key=lambda index: (not dialable[index], -holes[index], -self.members.costs[index]))
        return relays + leaves

    def _keep(self, order: Sequence[int], before: Parents) -> None:
        ids, index_of = self.members.ids, self.members.index_of
        for child in order if before else ():
            parent = index_of.get(before.get(ids[child], PeerId("")), -1)
            if parent >= 0 and self._possible(child, parent) and self._has_room(child, parent):
                self._link(child, parent)

    def _possible(self, child: int, parent: int) -> bool:
        members = self.members
        if self.capacities[parent] <= 0:
            return False
        if members.picky:
            return members.nodes[child].reaches(members.nodes[parent])
        if members.dialable[child] or members.dialable[parent]:
            return True
        lan = members.lans[child]
        possible = can_punch(members.holes[child], members.holes[parent]) or (lan and lan == members.lans[parent])
        return bool(possible) and not self._avoids(child, parent)

    def _avoids(self, child: int, parent: int) -> bool:
        """Whether a hole punch between the two failed lately, and their local network led nowhere either."""
        avoid = self.members.avoid.get(child)
        return avoid is not None and self.members.ids[parent] in avoid

    def _has_room(self, child: int, parent: int) -> bool:
        return self.spare[parent] + _ROUNDING >= self.members.costs[child]

    def _link(self, child: int, parent: int) -> None:
        self.parents[child] = parent
        self.children[parent].append(child)
        self.spare[parent] -= self.members.costs[child]

    def _connect(self, top: int, depth: int) -> None:
        """Offer this node and its descendants, which are connected to the root now, as parents."""
        level = [top]
        while level:
            for one in level:
                self.depths[one] = depth
                if self.spare[one] > _ROUNDING:
                    self._offer(one, depth)
            level = [child for one in level for child in self.children[one]]
            depth += 1

    def _offer(self, index: int, depth: int) -> None:
        place = (depth, index, index)
        if not self.members.dialable[index]:
            heappush(self.hidden_places[self.members.holes[index]], place)
            if lan := self.members.lans[index]:
                heappush(self.by_lan.setdefault(lan, []), place)
            return
        heappush(self.places, place)
        site, region = self.members.sites[index], self.members.regions[index]
        if site:
            heappush(self.by_site.setdefault(site, []), place)
        if region:
            heappush(self.by_region.setdefault(region, []), place)

    def _attach(self, child: int) -> None:
        """Attach a member at the best place; else, if it relays, at a leaf's place; else where the overload is least.

        A leaf that loses its place is attached again elsewhere. A member that no relay can reach stays unattached.
        """
        parent, leaf = self._best_place(child), -1
        if parent < 0 and self.capacities[child] > 0:
            parent, leaf = self._place_of_a_leaf(child)
        if parent < 0:
            parent = self._least_loaded(child)
        if parent >= 0:
            self._link(child, parent)
            self._connect(child, self.depths[parent] + 1)
        if leaf >= 0:
            self._attach(leaf)

    def _best_place(self, child: int) -> int:
        """Return the index of the best parent with room; -1 if every possible one is full.

        A parent of the same site is preferred, then one of the same region, unless it is much deeper than the others.
        """
        members = self.members
        lan = members.lans[child]
        in_lan = self.by_lan.get(lan) if lan else None
        in_same_lan = self._first(in_lan, child) if in_lan else None
        if self.capacities[child] <= 0 and (place := in_same_lan or self._hidden_place(child)) is not None:
            return place[2]
        anywhere = self._first(self.places, child)
        if anywhere is None and self.capacities[child] > 0:
            anywhere = in_same_lan or self._hidden_place(child)
        if anywhere is None:
            return -1
        sites = self.by_site.get(members.sites[child])
        for nearby in (in_lan, sites, self.by_region.get(members.regions[child])):
            place = None if not nearby else self._first(nearby, child)
            if place is not None and place[0] <= anywhere[0] + _DETOUR_HOPS:
                return place[2]
        return anywhere[2]

    def _hidden_place(self, child: int) -> Place | None:
        """Return a place under a member that cannot be dialled; None if none has room.

        Relays that the fewest members reach come first, which keeps the others free for members with less choice.
        """
        dialable, hole = self.members.dialable[child], self.members.holes[child]
        for other, places in enumerate(self.hidden_places):
            place = self._first(places, child) if places and (dialable or can_punch(hole, other)) else None
            if place is not None:
                return place
        return None

    def _first(self, places: list[Place], child: int) -> Place | None:
        """Return the shallowest place with room; None if there is none.

        A place without any room left is removed for good; one that is only too small for this child is kept.
        """
        cost = self.members.costs[child] - _ROUNDING
        passed: list[Place] = []
        found: Place | None = None
        avoids, picky = child in self.members.avoid, child in self.members.picky
        while places:
            place = places[0]
            here = self.depths[place[2]] == place[0]
            refused = (avoids and self._avoids(child, place[2])) or (picky and not self._possible(child, place[2]))
            if here and self.spare[place[2]] >= cost and not refused:
                found = place
                break
            heappop(places)
            if here and self.spare[place[2]] > _ROUNDING:
                passed.append(place)
        for place in passed:
            heappush(places, place)
        return found

    def _place_of_a_leaf(self, child: int) -> tuple[int, int]:
        """Make room for a relay: return the shallowest possible parent that has a leaf, and the leaf, which must move.

        Both are -1 if no leaf can make room.
        """
        costs = self.members.costs
        level = [0]
        while level:
            for parent in level:
                for leaf in self.children[parent] if self._possible(child, parent) else ():
                    if self.capacities[leaf] <= 0 and costs[leaf] >= costs[child] - _ROUNDING:
                        self.children[parent].remove(leaf)
                        self.spare[parent] += costs[leaf]
                        self.parents[leaf] = -1
                        return parent, leaf
            level = [one for parent in level for one in self.children[parent] if self.capacities[one] > 0]
        return -1, -1

    def _least_loaded(self, child: int) -> int:
        """Return the relay, or the origin, whose load relative to its uplink grows least, as none has room.

        -1 if no relay can reach the child.
        """
        if self.overloaded is None:
            self.overloaded = [self._load(index) for index in self._relays() if self.depths[index] >= 0]
            heapify(self.overloaded)
        passed, found = [], -1
        while self.overloaded and found < 0:
            entry = heappop(self.overloaded)
            index = entry[2]
            passed.append(entry)
            if self._possible(child, index):
                found = index
        for entry in passed:
            if entry[2] != found:
                heappush(self.overloaded, entry)
        if found >= 0:
            self.spare[found] -= self.members.costs[child]
            heappush(self.overloaded, self._load(found))
            self.spare[found] += self.members.costs[child]
        return found

    def _relays(self) -> Iterator[int]:
        return (index for index, capacity in enumerate(self.capacities) if capacity > 0)

    def _load(self, index: int) -> tuple[float, int, int]:
        capacity = self.capacities[index]
        return ((capacity - self.spare[index] + 1.0) / capacity, self.depths[index], index)
