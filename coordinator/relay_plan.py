"""Who relays versions to whom: one tree, rooted at the origin, that changes as little as possible.

Peers that can be dialled relay; the others are leaves. For few peers the tree is a chain, where every uplink carries
one copy (pipelined chunk by chunk); beyond that it is bounded in degree, filled level by level. Sources: SHARDCAST's
relays (arXiv 2505.07291) for the shape; the figures that decide between chain and tree are in the design notes on
broadcast. Striped trees can replace this without touching anything but this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

    def limit(self, peer_id: PeerId) -> int:
        return self.shape.origin_degree if peer_id == self.root.peer_id else self.relay_degree

    def link(self, child: PeerId, parent: PeerId) -> None:
        self.parents[child] = parent
        self.children[parent].append(child)

    def unlink(self, child: PeerId) -> None:
        self.children[self.parents.pop(child)].remove(child)

    def feasible(self, child: RelayNode, parent: RelayNode) -> bool:
        """Someone must be able to dial; only the root may be a parent without an address."""
        if parent.peer_id == self.root.peer_id:
            return bool(parent.address or child.address)
        return parent.interior

    def depths(self) -> dict[PeerId, int]:
        """Depth of everything connected to the root, level by level."""
        depths = {self.root.peer_id: 0}
        level = [self.root.peer_id]
        while level:
            level = [child for parent in level for child in self.children[parent]]
            depths.update((child, depths[self.parents[child]] + 1) for child in level)
        return depths

    def attach(self, child: RelayNode) -> None:
        """Below the shallowest parent with room; else in the place of a leaf; else where the excess is least."""
        depths = self.depths()
        places = sorted(
            (peer_id for peer_id in depths if self.feasible(child, self.nodes[peer_id])),
            key=lambda peer_id: (depths[peer_id], self.order[peer_id]),
        )
        for parent in places:
            if len(self.children[parent]) < self.limit(parent):
                return self.link(child.peer_id, parent)
        if child.interior and self._displace_leaf(child, places):
            return None
        if places:
            excess = {peer_id: len(self.children[peer_id]) - self.limit(peer_id) for peer_id in places}
            self.link(child.peer_id, min(places, key=lambda peer_id: (excess[peer_id], -depths[peer_id])))
        return None

    def _displace_leaf(self, child: RelayNode, places: Iterable[PeerId]) -> bool:
        """Take the place of a child that can never relay, and relay to it."""
        for parent in places:
            for leaf in self.children[parent]:
                if not self.nodes[leaf].interior:
                    self.unlink(leaf)
                    self.link(child.peer_id, parent)
                    self.link(leaf, child.peer_id)
                    return True
        return False


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
    parts = {}
    for node in nodes:
        parent = by_id.get(parents.get(node.peer_id, PeerId("")))
        parts[node.peer_id] = PlanPart(
            parents=() if parent is None else (_neighbour(parent, we_dial=bool(parent.address)),),
            children=tuple(_neighbour(child, we_dial=not node.address) for child in children[node.peer_id]),
            fallbacks=tuple(
                _neighbour(source, we_dial=True) for source in _fallbacks(node, nodes, by_id, parents, fallbacks_max)
            ),
        )
    return parts


def _neighbour(node: RelayNode, *, we_dial: bool) -> Neighbour:
    return Neighbour(node.peer_id, node.role, node.address if we_dial else "", we_dial)


def _fallbacks(
    node: RelayNode,
    nodes: Sequence[RelayNode],
    by_id: Mapping[PeerId, RelayNode],
    parents: Parents,
    count_max: int,
) -> list[RelayNode]:
    """The origin, then ancestors from the nearest (they hold a version sooner), then others that joined early."""
    if node.peer_id not in parents:
        return []
    ancestors = _ancestors(node.peer_id, parents)
    chosen = [other for other in nodes if other.role == "origin" and other.address]
    for other in chain((by_id[peer_id] for peer_id in ancestors), nodes):
        if len(chosen) > count_max:
            break
        if other.interior and other not in chosen and other.peer_id != node.peer_id:
            chosen.append(other)
    return [other for other in chosen if other.peer_id != parents[node.peer_id]][:count_max]


def _ancestors(peer_id: PeerId, parents: Parents) -> list[PeerId]:
    """From the parent to the root; in a cycle, which validate() looks for, one more than there are edges."""
    found: list[PeerId] = []
    while peer_id in parents and len(found) <= len(parents):
        peer_id = parents[peer_id]
        found.append(peer_id)
    return found


class RelayPlanner:
    """The plan in force, and who has been told which part of it."""

    def __init__(self, shape: TreeShape, *, fallbacks_max: int) -> None:
        self._shape = shape
        self._fallbacks_max = fallbacks_max
        self._told: dict[PeerId, PlanPart] = {}
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
        return [
            SendPlan(peer_id, self.plan_id, parts[peer_id].parents, parts[peer_id].children, parts[peer_id].fallbacks)
            for peer_id in changed
        ]

    def forget(self, peer_id: PeerId) -> None:
        """A new session was opened: whatever its peer was told before, tell it again."""
        self._told.pop(peer_id, None)

    def validate(self) -> None:
        """Raise AssertionError when the plan has a cycle."""
        for peer_id in self.parents:
            assert len(_ancestors(peer_id, self.parents)) <= len(self.parents), "a cycle in the relay plan"
