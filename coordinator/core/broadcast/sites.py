"""Plan for members behind one access link as for one member: a copy of each stripe comes in, and the LAN does the rest.

A site counts only while its members are linked to each other: a public address that they share proves nothing, because
routers exist that lead no packet from their inside back to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.core.broadcast.assignments import children_of
from coordinator.core.broadcast.nodes import Parents, Plan, RelayNode, Stripe
from rollcast.wire import limits
from rollcast.wire.address_scope import Scope
from rollcast.wire.ids import PeerId, StripeId
from rollcast.wire.links.frames import DIRECT_STRIPE

_LAN_DEGREE = 2  # copies of a stripe that one member sends inside its site: few, as all stripes may have one relay
_LAN_DEGREE_MAX = 8  # where few members are linked to all others; with more they are planned each for itself
_DIRECT_SHARE_MIN = 0.05  # share of the chunks below which copies of the origin's own are not worth a stripe
_COPIES_STRIPE = StripeId(limits.STRIPES_MAX)  # stripe of the origin's own copies; meshes use no stripe above it


@dataclass(frozen=True, slots=True)
class Site:
    """Members that share an access link and are linked to each other.

    Args:
        head: the member that stands for all of them in plans, with the access link's rates.
        uplink_bytes_per_second: of the access link, as the fastest of the gateways uses it.
        gateways: those that are linked to all others and may relay, the head first.
        members: all, in the order they joined.
    """

    head: RelayNode
    uplink_bytes_per_second: float
    gateways: tuple[RelayNode, ...]
    members: tuple[RelayNode, ...]


def find_sites(nodes: Sequence[RelayNode], root: RelayNode, uplinks: Mapping[PeerId, float]) -> list[Site]:
    """Return the sites of at least two members, without the one where the origin is: no access link is in between.

    A private network is no site: its members reach the origin without a shared access link. Nor is the only one that
    the origin serves: of a mesh among its members, too, one copy of each chunk comes in.

    Args:
        nodes: members without the root, in the order they joined.
        uplinks: uplink of every member, in bytes a second.
    """
    by_name: dict[str, list[RelayNode]] = {}
    for node in nodes:
        if node.site and node.site != root.site and node.home is Scope.PUBLIC:
            by_name.setdefault(node.site, []).append(node)
    found = (_site(members, root, uplinks) for members in by_name.values() if len(members) > 1)
    sites = [site for site in found if site is not None]
    return [] if len(sites) == 1 and len(sites[0].members) == len(nodes) else sites


def _site(members: Sequence[RelayNode], root: RelayNode, uplinks: Mapping[PeerId, float]) -> Site | None:
    linked = _linked(members)
    able = [one for one in members if one.may_relay and not one.metered and root.reaches(one) and linked[one.peer_id]]
    if not able:
        return None
    hub = max(able, key=lambda one: len(linked[one.peer_id]))  # of equals, the one that joined first
    inside = linked[hub.peer_id] | {hub.peer_id}
    gateways = [one for one in able if one.peer_id in inside and inside <= linked[one.peer_id] | {one.peer_id}]
    gateways.sort(key=lambda one: not one.address)
    group = tuple(one for one in members if one.peer_id in inside)
    if len(inside) - 1 > _LAN_DEGREE_MAX * len(gateways):
        return None
    downlinks = [one.downlink_bytes_per_second for one in group]
    known = [downlink for downlink in downlinks if downlink is not None]
    uplink = max(uplinks[one.peer_id] for one in gateways)
    head = replace(
        gateways[0],
        uplink_bytes_per_second=uplink,
        downlink_bytes_per_second=max(known) if len(known) == len(downlinks) else None,
    )
    return Site(head, uplink, (head, *gateways[1:]), group)


def _linked(members: Sequence[RelayNode]) -> dict[PeerId, set[PeerId]]:
    """Return, for each member, the others of its site with which one of both ends reports a link that is allowed."""
    by_id = {one.peer_id: one for one in members}
    linked: dict[PeerId, set[PeerId]] = {one.peer_id: set() for one in members}
    for one in members:
        for other in one.site_links & by_id.keys():
            if one.reaches(by_id[other]) and by_id[other].reaches(one):
                linked[one.peer_id].add(other)
                linked[other].add(one.peer_id)
    return linked


def as_units(nodes: Sequence[RelayNode], sites: Sequence[Site]) -> list[RelayNode]:
    """Return the members to plan for: each site's head in place of all its members."""
    heads = {site.head.peer_id: site.head for site in sites}
    inside = {one.peer_id for site in sites for one in site.members}
    return [heads.get(node.peer_id, node) for node in nodes if node.peer_id in heads or node.peer_id not in inside]


def with_sites(plan: Plan, sites: Sequence[Site], nodes: Iterable[RelayNode]) -> Plan:
    """Return the plan for all members: in each stripe another gateway of a site takes the head's place.

    The origin's copies of its own to all members become an ordinary stripe: otherwise they would enter a site as often
    as it has members. The rate is that of the plan for units, which the shared access links bound.

    Args:
        nodes: all members, the root included.
    """
    if not sites:
        return plan
    by_id = {node.peer_id: node for node in nodes}
    pullers = plan.pullers.union(
        *({one.peer_id for one in site.members} for site in sites if site.head.peer_id in plan.pullers)
    )
    stripes = [
        replace(stripe, parents=_expanded(stripe.parents, place, sites, by_id, plan.pullers))
        for place, stripe in enumerate(_with_ordinary_copies(plan.stripes))
    ]
    lists = _expanded(plan.list_parents, 0, sites, by_id, frozenset(by_id))
    return replace(plan, stripes=tuple(stripes), list_parents=lists, pullers=pullers)


def _with_ordinary_copies(stripes: Sequence[Stripe]) -> list[Stripe]:
    """Return the stripes with an ordinary one in place of the origin's direct copies, and without one that is idle."""
    kept = [
        one for one in stripes if one.stripe != DIRECT_STRIPE or one.share >= _DIRECT_SHARE_MIN or len(stripes) == 1
    ]
    total = sum(one.share for one in kept)
    return [
        replace(one, stripe=_COPIES_STRIPE if one.stripe == DIRECT_STRIPE else one.stripe, share=one.share / total)
        for one in kept
    ]


def _expanded(
    parents: Parents,
    place: int,
    sites: Sequence[Site],
    by_id: Mapping[PeerId, RelayNode],
    fixed: frozenset[PeerId],
) -> Parents:
    """Return a stripe's tree with the members of sites below a gateway of theirs.

    Args:
        place: of the stripe among all, so that they come in through different gateways.
        fixed: heads that give their place to no other gateway.
    """
    below = children_of(parents)
    entrances: dict[PeerId, PeerId] = {}  # head -> the gateway in its place
    for site in sites:
        head = site.head.peer_id
        if head in parents:
            around = [by_id[entrances.get(one, one)] for one in (parents[head], *below.get(head, ()))]
            entrances[head] = head if head in fixed else _gateway(site, place, around)
    tree = {entrances.get(child, child): entrances.get(parent, parent) for child, parent in parents.items()}
    for site in sites:
        if site.head.peer_id in entrances:
            tree |= _inside(site, entrances[site.head.peer_id])
    return tree


def _gateway(site: Site, place: int, around: Sequence[RelayNode]) -> PeerId:
    """Return the next gateway in turn that reaches all with which the head is linked in a stripe; else the head."""
    turn = place % len(site.gateways)
    in_turn = (*site.gateways[turn:], *site.gateways[:turn])
    suitable = (one.peer_id for one in in_turn if all(one.reaches(other) for other in around))
    return next(suitable, site.head.peer_id)


def _inside(site: Site, first: PeerId) -> Parents:
    """Return the tree inside a site, below the gateway through which the stripe comes in: of the other gateways first.

    Only gateways pass on, because they are linked to all members.
    """
    others = [one.peer_id for one in site.gateways if one.peer_id != first]
    relays = [first, *others]
    gateways = {first, *others}
    below = [*others, *(one.peer_id for one in site.members if one.peer_id not in gateways)]
    degree = max(_LAN_DEGREE, -(-len(below) // len(relays)))
    return {child: relays[turn // degree] for turn, child in enumerate(below)}
