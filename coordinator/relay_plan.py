"""Who relays versions to whom: one tree, rooted at the origin, that changes as little as possible.

Peers that can be dialled relay; the others are leaves. For few peers the tree is a chain, where every uplink carries
one copy (pipelined chunk by chunk); beyond that it is bounded in degree, filled level by level. Sources: SHARDCAST's
relays (arXiv 2505.07291) for the shape; the figures that decide between chain and tree are in the design notes on
broadcast. Striped trees can replace this without touching anything but this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain

from coordinator.actions import Neighbour, SendPlan
from rollcast.wire.ids import PeerId, PlanId

Parents = Mapping[PeerId, PeerId]  # child -> parent; the root has none


@dataclass(frozen=True, slots=True)
class RelayNode:
    """What planning needs to know of a member. ``may_relay`` is False for quarantined peers."""

    peer_id: PeerId
    role: str
    address: str
    may_relay: bool

    @property
    def interior(self) -> bool:
        """Whether others may be given this node as their parent."""
        return self.may_relay and bool(self.address)


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How many children a node has while there is a choice."""

    chain_peers_max: int
    origin_degree: int
    relay_degree: int


class _Tree:
    """A tree under construction: edges kept from before, then orphans attached one by one."""

    def __init__(self, nodes: Sequence[RelayNode], root: RelayNode, shape: TreeShape) -> None:
        self.nodes = {node.peer_id: node for node in nodes}
        self.order = {node.peer_id: index for index, node in enumerate(nodes)}
        self.root = root
        self.shape = shape
        self.relay_degree = 1 if len(nodes) - 1 <= shape.chain_peers_max else shape.relay_degree
        self.parents: dict[PeerId, PeerId] = {}
        self.children: dict[PeerId, list[PeerId]] = {node.peer_id: [] for node in nodes}
        self.depths: dict[PeerId, int] = {}  # of what is connected to the root
        self.places: list[tuple[int, int, PeerId]] = []  # heap of possible parents: depth, order of joining, who

    def limit(self, peer_id: PeerId) -> int:
        return self.shape.origin_degree if peer_id == self.root.peer_id else self.relay_degree

    def has_room(self, peer_id: PeerId) -> bool:
        return len(self.children[peer_id]) < self.limit(peer_id)

    def link(self, child: PeerId, parent: PeerId) -> None:
        self.parents[child] = parent
        self.children[parent].append(child)

    def feasible(self, child: RelayNode, parent: RelayNode) -> bool:
        """Someone must be able to dial; only the root may be a parent without an address."""
        if parent.peer_id == self.root.peer_id:
            return bool(parent.address or child.address)
        return parent.interior

    def connect(self, peer_id: PeerId, depth: int) -> None:
        """This node and what is below it hang on the root now: they may become parents."""
        level = [peer_id]
        while level:
            for one in level:
                self.depths[one] = depth
                if (one == self.root.peer_id or self.nodes[one].interior) and self.has_room(one):
                    heappush(self.places, (depth, self.order[one], one))
            level = [child for one in level for child in self.children[one]]
            depth += 1

    def attach(self, child: RelayNode) -> None:
        """Below the shallowest parent with room; else in the place of a leaf; else where the excess is least."""
        parent = self._shallowest_with_room(child) or self._place_of_a_leaf(child) or self._least_loaded(child)
        if parent is not None:
            self.link(child.peer_id, parent)
            self.connect(child.peer_id, self.depths[parent] + 1)

    def _shallowest_with_room(self, child: RelayNode) -> PeerId | None:
        passed = []
        found = None
        while self.places and found is None:
            place = heappop(self.places)
            if self.has_room(place[2]):
                passed.append(place)  # it may have room for more
                if self.feasible(child, self.nodes[place[2]]):
                    found = place[2]
        for place in passed:
            heappush(self.places, place)
        return found

    def _candidates(self, child: RelayNode) -> list[PeerId]:
        """Connected parents that are possible at all, the shallowest first."""
        possible = [peer_id for peer_id in self.depths if self.feasible(child, self.nodes[peer_id])]
        return sorted(possible, key=lambda peer_id: (self.depths[peer_id], self.order[peer_id]))

    def _place_of_a_leaf(self, child: RelayNode) -> PeerId | None:
        """Move a node that can never relay below one that can, to give it its place."""
        if not child.interior:
            return None
        for parent in self._candidates(child):
            for leaf in self.children[parent]:
                if not self.nodes[leaf].interior:
                    self.children[parent].remove(leaf)
                    self.link(leaf, child.peer_id)
                    return parent
        return None

    def _least_loaded(self, child: RelayNode) -> PeerId | None:
        """The parent with the fewest children above its limit; the deepest of them, which has most to spare."""
        excess = {peer_id: len(self.children[peer_id]) - self.limit(peer_id) for peer_id in self._candidates(child)}
        return min(excess, key=lambda peer_id: (excess[peer_id], -self.depths[peer_id]), default=None)


def plan_tree(nodes: Sequence[RelayNode], shape: TreeShape, before: Parents) -> dict[PeerId, PeerId] | None:
    """Parents of all nodes, given those of the tree before. None without an origin.

    ``nodes`` are in the order they joined. A node keeps its parent unless that left, may relay no more, or had to make
    room: one join or leave moves at most as many nodes as the one concerned has children, plus one. A node that nobody
    can reach (neither it nor the origin can be dialled, and no relay is there) is left out.
    """
    root = next((node for node in nodes if node.role == "origin"), None)
    if root is None:
        return None
    tree = _Tree(nodes, root, shape)
    for node in nodes:
        parent = tree.nodes.get(before.get(node.peer_id, PeerId("")))
        if parent is not None and node.peer_id != root.peer_id and tree.feasible(node, parent):
            tree.link(node.peer_id, parent.peer_id)
    tree.connect(root.peer_id, 0)
    orphans = [node for node in nodes if node.peer_id not in tree.parents and node.peer_id != root.peer_id]
    for node in sorted(orphans, key=lambda node: not node.interior):  # those that can relay first
        tree.attach(node)
    return tree.parents


@dataclass(frozen=True, slots=True)
class PlanPart:
    """One node's part of the plan."""

    parents: tuple[Neighbour, ...]
    children: tuple[Neighbour, ...]
    fallbacks: tuple[Neighbour, ...]


def plan_parts(nodes: Sequence[RelayNode], parents: Parents, fallbacks_max: int) -> dict[PeerId, PlanPart]:
    """Every node's part. The child dials if its parent has an address, else the parent dials the child."""
    by_id = {node.peer_id: node for node in nodes}
    children: dict[PeerId, list[RelayNode]] = {node.peer_id: [] for node in nodes}
    for node in nodes:
        if node.peer_id in parents:
            children[parents[node.peer_id]].append(node)
    origins = [node for node in nodes if node.role == "origin" and node.address]
    parts = {}
    for node in nodes:
        parent = by_id.get(parents.get(node.peer_id, PeerId("")))
        parts[node.peer_id] = PlanPart(
            parents=() if parent is None else (_neighbour(parent, we_dial=bool(parent.address)),),
            children=tuple(_neighbour(child, we_dial=not node.address) for child in children[node.peer_id]),
            fallbacks=tuple(
                _neighbour(source, we_dial=True)
                for source in _fallbacks(node, origins, nodes, by_id, parents, fallbacks_max)
            ),
        )
    return parts


def _neighbour(node: RelayNode, *, we_dial: bool) -> Neighbour:
    return Neighbour(node.peer_id, node.role, node.address if we_dial else "", we_dial)


def _fallbacks(
    node: RelayNode,
    origins: Sequence[RelayNode],
    nodes: Sequence[RelayNode],
    by_id: Mapping[PeerId, RelayNode],
    parents: Parents,
    count_max: int,
) -> list[RelayNode]:
    """The origin, then ancestors from the nearest (they hold a version sooner), then others that joined early."""
    if node.peer_id not in parents:
        return []
    ancestors = (by_id[peer_id] for peer_id in _ancestors(node.peer_id, parents))
    chosen = list(origins)
    for other in chain(ancestors, nodes):
        if len(chosen) > count_max:
            break
        if other.interior and other not in chosen and other.peer_id != node.peer_id:
            chosen.append(other)
    return [other for other in chosen if other.peer_id != parents[node.peer_id]][:count_max]


def _ancestors(peer_id: PeerId, parents: Parents) -> Iterator[PeerId]:
    """From the parent to the root; in a cycle, which validate() looks for, one more than there are edges."""
    for _ in range(len(parents) + 1):
        if peer_id not in parents:
            return
        peer_id = parents[peer_id]
        yield peer_id


class RelayPlanner:
    """The plan in force, and who has been told which part of it."""

    def __init__(self, shape: TreeShape, *, fallbacks_max: int) -> None:
        self._shape = shape
        self._fallbacks_max = fallbacks_max
        self._told: dict[PeerId, PlanPart] = {}
        self._sources: dict[PeerId, tuple[frozenset[PeerId], frozenset[PeerId]]] = {}  # now, and before the last change
        self.parents: dict[PeerId, PeerId] = {}
        self.plan_id = PlanId(0)

    def parents_of(self, peer_id: PeerId) -> tuple[PeerId, ...]:
        return (self.parents[peer_id],) if peer_id in self.parents else ()

    def replan(self, nodes: Sequence[RelayNode]) -> list[SendPlan]:
        """The parts that changed, in the order the nodes joined. Without an origin everything stays as it is."""
        present = {node.peer_id for node in nodes}
        self._told = {peer_id: part for peer_id, part in self._told.items() if peer_id in present}
        parents = plan_tree(nodes, self._shape, self.parents)
        if parents is None:
            return []
        self.parents = parents
        parts = plan_parts(nodes, parents, self._fallbacks_max)
        changed = [peer_id for peer_id, part in parts.items() if self._told.get(peer_id) != part]
        if not changed:
            return []
        self.plan_id = PlanId(self.plan_id + 1)
        self._told = parts
        self._remember_sources(parts)
        return [
            SendPlan(peer_id, self.plan_id, parts[peer_id].parents, parts[peer_id].children, parts[peer_id].fallbacks)
            for peer_id in changed
        ]

    def _remember_sources(self, parts: Mapping[PeerId, PlanPart]) -> None:
        before, self._sources = self._sources, {}
        for peer_id, part in parts.items():
            sources = frozenset(one.peer_id for one in (*part.parents, *part.fallbacks))
            now, previous = before.get(peer_id, (frozenset(), frozenset()))
            self._sources[peer_id] = (now, previous) if sources == now else (sources, now)

    def may_receive_from(self, peer_id: PeerId, source: PeerId) -> bool:
        """Whether ``source`` is a parent or fallback of this peer, or was until its part of the plan last changed."""
        return any(source in sources for sources in self._sources.get(peer_id, ()))

    def forget(self, peer_id: PeerId) -> None:
        """A new session was opened: whatever its peer was told before, tell it again."""
        self._told.pop(peer_id, None)

    def validate(self) -> None:
        """Raise AssertionError when the plan has a cycle."""
        for peer_id in self.parents:
            assert sum(1 for _ in _ancestors(peer_id, self.parents)) <= len(self.parents), "a cycle in the relay plan"
