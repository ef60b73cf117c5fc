"""Draw the relay plan in force as nodes and edges: of members in a small fleet, of regions in a large one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from coordinator.core.broadcast.nodes import Plan
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.events import LinkFacts
from coordinator.core.members.membership import Member
from coordinator.core.status.broadcast import furthest_behind, share_held
from coordinator.core.status.peers import took_s
from coordinator.core.status.turns import Turns
from rollcast.wire.ids import PeerId
from rollcast.wire.reach_words import path_of

PEERS_DRAWN_MAX = 200
NO_REGION = "no region given"
REGION_EDGES_S = 5.0

Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A member, or all workers of a region.

    Args:
        version: version that it holds, for a region the oldest one; None if none.
        share_held: share of the newest version that it holds, for a region the mean.
        depth: hops from the origin in the tree of announcements, for a region the fewest; None outside the plan.
        peers: number of members.
        slowest_s: seconds from announcement to verified copy of the newest version that it received, for a region the
            most; None before the first version.
    """

    id: str
    name: str
    region: str
    role: str
    version: int | None
    share_held: float
    depth: int | None
    peers: int
    slowest_s: float | None


@dataclass(frozen=True, slots=True)
class TreeEdge:
    """A hop, or all hops, from ``source`` to ``target``.

    ``bytes_per_s`` is the rate that the sending end measured, None if it did not. Between regions it is the sum of the
    measured rates, and ``rtt_s`` is the mean round trip.
    """

    source: str
    target: str
    stripes: tuple[int, ...]
    bytes_per_s: float | None
    rtt_s: float | None
    transport: str
    lan: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """The drawn relay plan. With ``by_region`` the nodes are origins and regions, else all members."""

    by_region: bool
    nodes: tuple[TreeNode, ...]
    edges: tuple[TreeEdge, ...]


@dataclass(frozen=True, slots=True)
class SlowestBranch:
    """The path from the origin to the member that a version reached last, along the stripe with the slowest hop.

    ``seconds`` runs from the announcement to the verified copy, or until now if the member still lacks the version.
    """

    path: tuple[str, ...]
    seconds: float
    version: int | None


@dataclass(slots=True)
class _Sum:
    """Sums up the hops from one node to another."""

    stripes: set[int] = field(default_factory=set)
    transports: set[str] = field(default_factory=set)
    rate: float = 0.0
    measured: int = 0
    rtt_sum_s: float = 0.0
    rtts: int = 0
    pairs: int = 0
    lan_pairs: int = 0


HOPS_A_TURN = 8000
"""Hops that are summed up in one turn of the event loop."""


class Shape:
    """Caches edges by their ends and depths until the next plan, and the edges between regions for REGION_EDGES_S."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self.region_edges: tuple[TreeEdge, ...] = ()
        self.region_edges_until = float("-inf")
        self.edges: Mapping[tuple[PeerId, PeerId], tuple[int, ...]] = {}
        self.depths: Mapping[PeerId, int] = {}

    def follow(self, plan: Plan | None) -> Turns[None]:
        """Replace the cached plan if ``plan`` is another one, in turns."""
        if plan is self._plan:
            return
        found: dict[tuple[PeerId, PeerId], tuple[int, ...]] = {}
        for stripe in () if plan is None else plan.stripes:
            number = (int(stripe.stripe),)
            for child, parent in stripe.parents.items():
                found[parent, child] = found.get((parent, child), ()) + number
            yield
        depths = {} if plan is None else depths_of(plan)
        self._plan, self.edges, self.depths, self.region_edges_until = plan, found, depths, float("-inf")


def depths_of(plan: Plan) -> dict[PeerId, int]:
    """Return each member's number of hops from the root in the tree of announcements and chunk lists."""
    depths = {plan.root: 0}
    for child in plan.list_parents:
        path = []
        while child not in depths:
            path.append(child)
            child = plan.list_parents[child]
        for one in reversed(path):
            depths[one] = depths[plan.list_parents[one]] + 1
    return depths


def build_tree(state: CoreState, shape: Shape, now: float) -> Turns[Tree]:
    """Return the plan in force with the measured rates of its hops, in turns.

    Those between regions may be REGION_EDGES_S old.
    """
    yield from shape.follow(state.relay.plan)
    yield
    members = [one for one in state.members if one.role != "peer" or not one.reputation.dark]
    by_region = sum(one.role == "peer" for one in members) > PEERS_DRAWN_MAX
    groups = {one.peer_id: group_of(one) if by_region else str(one.peer_id) for one in members}
    nodes = _nodes(state, shape, members, groups)
    yield
    if not by_region:
        edges = yield from _edges(state, shape, groups)
        return Tree(False, nodes, edges)
    if now >= shape.region_edges_until:  # they are sums over thousands of hops
        shape.region_edges = yield from _edges(state, shape, groups)
        shape.region_edges_until = now + REGION_EDGES_S
    return Tree(True, nodes, shape.region_edges)


def group_of(member: Member) -> str:
    """Return the node that stands for a member when regions are drawn: an origin stands for itself."""
    return str(member.peer_id) if member.role != "peer" else f"region:{member.region or NO_REGION}"


def _nodes(
    state: CoreState, shape: Shape, members: Iterable[Member], groups: Mapping[PeerId, str]
) -> tuple[TreeNode, ...]:
    gathered: dict[str, list[Member]] = {}
    for member in members:
        gathered.setdefault(groups[member.peer_id], []).append(member)
    return tuple(_node(state, shape, node_id, found) for node_id, found in gathered.items())


def _node(state: CoreState, shape: Shape, node_id: str, members: list[Member]) -> TreeNode:
    first, newest = members[0], state.newest_version
    is_region = node_id.startswith("region:")
    versions = [one.version for one in members if one.version is not None]
    depths = [depth for one in members if (depth := shape.depths.get(one.peer_id)) is not None]
    took = [seconds for one in members if (seconds := took_s(state, one)) is not None]
    held = sum(1.0 if one.role == "origin" else share_held(one, newest) for one in members)
    return TreeNode(
        id=node_id,
        name=first.region or NO_REGION if is_region else first.name,
        region=first.region,
        role="peer" if is_region else first.role,
        version=min(versions) if versions else newest if first.role == "origin" else None,
        share_held=round(held / len(members), 4),
        depth=min(depths, default=None),
        peers=len(members),
        slowest_s=round(max(took), 3) if took else None,
    )


def _edges(state: CoreState, shape: Shape, groups: Mapping[PeerId, str]) -> Turns[tuple[TreeEdge, ...]]:
    """Return the edges between the nodes that are drawn, in turns; hops within a region are left out."""
    sums: dict[Edge, _Sum] = {}
    links = _Links(state)
    for number, ((parent, child), stripes) in enumerate(shape.edges.items(), start=1):
        if not number % HOPS_A_TURN:
            yield
        source, target = groups.get(parent), groups.get(child)
        if source is None or target is None or source == target:
            continue
        found = sums.get((source, target))
        if found is None:
            found = sums[source, target] = _Sum()
        found.stripes.update(stripes)
        found.pairs += 1
        found.lan_pairs += links.lan(parent, child)
        link = links.get(parent, child)
        if link is not None:
            _add(found, link)
    return tuple(_edge(ends, one) for ends, one in sums.items())


def _add(found: _Sum, link: LinkFacts) -> None:
    found.transports.add(path_of(link.transport, lan=link.lan))
    if link.sent_bytes_per_second:
        found.rate += link.sent_bytes_per_second
        found.measured += 1
    if link.rtt_s:
        found.rtt_sum_s += link.rtt_s
        found.rtts += 1


def _edge(ends: Edge, one: _Sum) -> TreeEdge:
    return TreeEdge(
        *ends,
        stripes=tuple(sorted(one.stripes)),
        bytes_per_s=round(one.rate) if one.measured else None,
        rtt_s=round(one.rtt_sum_s / one.rtts, 4) if one.rtts else None,
        transport="+".join(sorted(one.transports)),
        lan=one.lan_pairs == one.pairs,
    )


class _Links:
    """Looks up links by their sending end, once for each sender."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._of: dict[PeerId, dict[PeerId, LinkFacts]] = {}
        self._sites: dict[PeerId, str] = {one.peer_id: one.site for one in state.members}

    def get(self, sender: PeerId, receiver: PeerId) -> LinkFacts | None:
        found = self._of.get(sender)
        if found is None:
            member = self._state.members.get(sender)
            links = () if member is None or member.facts is None else member.facts.links
            found = self._of[sender] = {link.peer_id: link for link in links}
        return found.get(receiver)

    def lan(self, one: PeerId, other: PeerId) -> bool:
        site = self._sites.get(one, "")
        return site != "" and site == self._sites.get(other)


def slowest_branch(state: CoreState, now: float) -> SlowestBranch | None:
    """Return the path to the member that the newest version reaches last; None before any member received one."""
    plan, last = state.relay.plan, _last_member(state, now)
    if plan is None or last is None:
        return None
    member, seconds, version = last
    links = _Links(state)
    paths = [path for stripe in plan.stripes if (path := _path(stripe.parents, plan.root, member.peer_id))]
    if not paths:
        return None
    slowest = min(paths, key=lambda path: _rate_of(links, path))
    names = tuple(one if (found := state.members.get(one)) is None else found.name for one in slowest)
    return SlowestBranch(names, round(seconds, 3), version)


def _last_member(state: CoreState, now: float) -> tuple[Member, float, int | None] | None:
    """Return the member furthest behind with the newest version; if all hold it, the one that took longest to get it.

    With it are its seconds since or from the announcement, and the version. None before any member received one.
    """
    broadcast = state.dissemination.newest
    if broadcast is not None and broadcast.missing:
        missing = [one for one in map(state.members.get, broadcast.missing) if one is not None]
        if missing:
            last = furthest_behind(missing, state.newest_version)
            return last, now - broadcast.announced_at, broadcast.version
    slowest: tuple[Member, float, int | None] | None = None
    for member in state.members:
        times = state.dissemination.times_of(member.peer_id)
        seconds = None if times is None else times.seconds.last
        if times is not None and seconds is not None and (slowest is None or seconds > slowest[1]):
            slowest = member, seconds, times.newest_held
    return slowest


def _path(parents: Mapping[PeerId, PeerId], root: PeerId, last: PeerId) -> tuple[PeerId, ...]:
    """Return the path from the root to this member; empty if the stripe does not reach it."""
    path = [last]
    while path[-1] != root:
        parent = parents.get(path[-1])
        if parent is None or len(path) > len(parents):
            return ()
        path.append(parent)
    return tuple(reversed(path))


def _rate_of(links: _Links, path: tuple[PeerId, ...]) -> float:
    """Return the rate of the path's slowest measured hop; hops that were not measured do not count."""
    rates = []
    for source, target in pairwise(path):
        link = links.get(source, target)
        if link is not None and link.sent_bytes_per_second:
            rates.append(link.sent_bytes_per_second)
    return min(rates, default=float("inf"))
