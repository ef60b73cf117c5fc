"""Plan for few members: each relay passes its stripe on to all others, and the origin sends the rest itself.

Shares in proportion to the relays' uplinks reach the fluid bound exactly. Source: Mutualcast (Li, Chou and Zhang 2005,
section 3). The relays find the shares by themselves, from credits; here they are only estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from capacity.model.broadcast_bound import common_rate, fluid_rate
from coordinator.core.broadcast.nodes import Parents, Plan, RelayNode, Stripe, slower_than
from rollcast.wire import limits
from rollcast.wire.ids import PeerId, StripeId
from rollcast.wire.links.frames import DIRECT_STRIPE

_USEFUL_SHARE = 1 / 20  # share of the mean uplink below which a relay only adds latency
_SERVICE_S_MAX = 5.0  # most seconds for sending one chunk to all others, unless all relays are slower
_CHUNK_BYTES = 64 << 10  # the usual chunk, for that bound
_REACHED_SHARE = 0.5  # a relay that reaches fewer of the others leaves most copies of its stripe to their uplinks
_SUFFICIENT_SHARE = 0.98  # peers behind NAT relay where the others alone stay below this share of what is possible
_SURELY = 1.1  # a margin: uplinks are measured, and one estimated too fast must not leave the origin idle for a run
_LIST_DEGREE = 8  # copies of a chunk list that the origin sends itself


def plan_mesh(
    nodes: Sequence[RelayNode], root: RelayNode, uplinks: Mapping[PeerId, float], before: Mapping[PeerId, StripeId]
) -> tuple[Plan, dict[PeerId, StripeId]]:
    """Return the plan, and each relay's stripe.

    Args:
        nodes: members without the root, in the order they joined.
        uplinks: uplink of every member, the root included, in bytes a second.
        before: stripes in use, so that a relay keeps its own and none gets another's while chunks are in flight.
    """
    rate = _common_rate(nodes, root, uplinks)
    slow = slower_than(rate, nodes)
    relays = _relays(nodes, slow, root, uplinks)
    pullers = slow if relays else frozenset()
    ids = _stripe_ids(relays, before)
    helping = _Helping(uplinks)
    trees = [_tree(relay, nodes, slow, root, relays, helping) for relay in relays]
    rates = _rates(trees, [relay.peer_id for relay in relays], root.peer_id, uplinks, _costs(nodes, rate))
    source = uplinks[root.peer_id]
    used = sum(rate * _copies(parents, {})[root.peer_id] for rate, parents in zip(rates, trees, strict=True))
    if used > source:
        rates = [rate * source / used for rate in rates]
    pushed = [node for node in nodes if node.peer_id not in pullers]
    reaches_all = bool(pushed) and all(root.reaches(node) if relays else _at_all(root, node) for node in pushed)
    direct = max(0.0, source - used) / len(pushed) if reaches_all else 0.0
    total = sum(rates) + direct
    stripes = [
        Stripe(ids[relay.peer_id], parents, rate / total)
        for relay, rate, parents in zip(relays, rates, trees, strict=True)
    ]
    # Where the relays can surely pass on all that it sends, copies of its own would only waste its uplink.
    if reaches_all and (not stripes or used < _SURELY * source):
        stripes.insert(0, Stripe(DIRECT_STRIPE, {node.peer_id: root.peer_id for node in pushed}, direct / total))
    lists = _list_tree(nodes, pullers, root, relays, uplinks)
    return Plan(root.peer_id, "mesh", tuple(stripes), total, lists, pullers), ids


def _common_rate(nodes: Sequence[RelayNode], root: RelayNode, uplinks: Mapping[PeerId, float]) -> float:
    """Return the bytes a second that members whose downlinks are no limit can receive; one member at least can."""
    relays = [uplinks[node.peer_id] for node in nodes if node.may_relay]
    downlinks = [
        math.inf if node.downlink_bytes_per_second is None else node.downlink_bytes_per_second for node in nodes
    ]
    return min(fluid_rate(uplinks[root.peer_id], relays, downlinks), max(downlinks, default=math.inf))


def _costs(nodes: Sequence[RelayNode], rate: float) -> dict[PeerId, float]:
    """Return the share of each copy that a member takes, for members whose downlinks take less than this rate."""
    return {
        node.peer_id: node.downlink_bytes_per_second / rate
        for node in nodes
        if node.downlink_bytes_per_second is not None and node.downlink_bytes_per_second < rate
    }


def _relays(
    nodes: Sequence[RelayNode], slow: frozenset[PeerId], root: RelayNode, uplinks: Mapping[PeerId, float]
) -> list[RelayNode]:
    """Return the members whose uplinks justify a stripe; at least one if any unmetered one may relay.

    A member in ``slow``, whose downlink would hold back its stripe, gets none.
    """
    others = {node.peer_id: sum(node.reaches(one) for one in nodes if one is not node) for node in nodes}
    quick = [node for node in nodes if node.peer_id not in slow]
    able = [node for node in quick if node.may_relay and root.reaches(node) and others[node.peer_id]]
    willing = [node for node in able if not node.metered]
    if not willing:  # metered ones only where the origin cannot reach every member
        return able[:1] if any(not root.reaches(node) for node in nodes) else []
    willing = [node for node in willing if others[node.peer_id] >= _REACHED_SHARE * (len(nodes) - 1)] or willing
    least = _USEFUL_SHARE * fmean(uplinks[node.peer_id] for node in willing)
    willing = [node for node in willing if uplinks[node.peer_id] >= least]
    fast_enough = (len(nodes) - 1) * _CHUNK_BYTES / _SERVICE_S_MAX
    fast = [node for node in willing if uplinks[node.peer_id] >= fast_enough] or willing
    dialable = [node for node in fast if node.address]
    reached, possible = (_bound(relays, nodes, root, uplinks) for relays in (dialable, fast))
    return dialable if dialable and reached >= _SUFFICIENT_SHARE * possible else fast


def _bound(
    relays: Sequence[RelayNode], nodes: Sequence[RelayNode], root: RelayNode, uplinks: Mapping[PeerId, float]
) -> float:
    return common_rate(uplinks[root.peer_id], sum(uplinks[node.peer_id] for node in relays), len(nodes))


def _stripe_ids(relays: Sequence[RelayNode], before: Mapping[PeerId, StripeId]) -> dict[PeerId, StripeId]:
    ids = {relay.peer_id: before[relay.peer_id] for relay in relays if relay.peer_id in before}
    taken = set(before.values())
    following = max(taken, default=0)
    for relay in relays:
        if relay.peer_id not in ids:
            following = following + 1 if following + 1 < limits.STRIPES_MAX else 1
            while following in taken:
                following += 1
            ids[relay.peer_id] = StripeId(following)
            taken.add(StripeId(following))
    return ids


class _Helping:
    """Chooses the members that pass a stripe on to those that its relay does not reach, balancing their load."""

    def __init__(self, uplinks: Mapping[PeerId, float]) -> None:
        self._uplinks = uplinks
        self._copies: dict[PeerId, int] = {}

    def best(self, node: RelayNode, helpers: Sequence[RelayNode]) -> RelayNode | None:
        """Return the least loaded member, relative to its uplink, that reaches this one, and add to its load."""
        able = [one for one in helpers if one.reaches(node)]
        if not able:
            return None
        best = min(able, key=lambda one: (self._copies.get(one.peer_id, 0) + 1) / self._uplinks[one.peer_id])
        self._copies[best.peer_id] = self._copies.get(best.peer_id, 0) + 1
        return best


def _tree(
    relay: RelayNode,
    nodes: Sequence[RelayNode],
    slow: frozenset[PeerId],
    root: RelayNode,
    relays: Sequence[RelayNode],
    helping: _Helping,
) -> Parents:
    """Return the relay's stripe: all others are its children, except those that only another member reaches."""
    parents = {relay.peer_id: root.peer_id}
    helpers = [one for one in relays if one is not relay and relay.reaches(one)]
    quick = [one for one in nodes if one is not relay and one.peer_id not in slow]
    last_resort = [one for one in quick if one.may_relay and relay.reaches(one)]
    for node in nodes:
        if node is relay:
            continue
        if relay.reaches(node):
            parents[node.peer_id] = relay.peer_id
        elif helper := helping.best(node, helpers):
            parents[node.peer_id] = helper.peer_id
        elif root.reaches(node):
            parents[node.peer_id] = root.peer_id
        elif helper := helping.best(node, last_resort):
            parents[node.peer_id] = helper.peer_id
        elif relayed := [one for one in (relay, root) if one.is_relayed_to(node)]:
            parents[node.peer_id] = relayed[0].peer_id
    return parents


def _rates(
    trees: Sequence[Parents],
    relays: Sequence[PeerId],
    root: PeerId,
    uplinks: Mapping[PeerId, float],
    costs: Mapping[PeerId, float],
) -> list[float]:
    """Return the bytes per second of each stripe: what its relay's uplink carries, less in an overloaded tree.

    Args:
        costs: share of each copy that a member takes; 1 for those that are not in it.
    """
    copies = [_copies(parents, costs) for parents in trees]
    rates = [uplinks[relay] / max(1.0, own.get(relay, 0.0)) for relay, own in zip(relays, copies, strict=True)]
    loads: dict[PeerId, float] = {}
    for rate, own in zip(rates, copies, strict=True):
        for peer_id, count in own.items():
            loads[peer_id] = loads.get(peer_id, 0.0) + rate * count
    fits = {peer_id: min(1.0, uplinks[peer_id] / load) for peer_id, load in loads.items() if peer_id != root}
    return [
        rate * min((fits[peer_id] for peer_id in own if peer_id in fits), default=1.0)
        for rate, own in zip(rates, copies, strict=True)
    ]


def _copies(parents: Parents, costs: Mapping[PeerId, float]) -> dict[PeerId, float]:
    """Return the copies that each parent sends, some of them in part."""
    copies: dict[PeerId, float] = {}
    for child, parent in parents.items():
        copies[parent] = copies.get(parent, 0.0) + costs.get(child, 1.0)
    return copies


def _list_tree(
    nodes: Sequence[RelayNode],
    pullers: frozenset[PeerId],
    root: RelayNode,
    relays: Sequence[RelayNode],
    uplinks: Mapping[PeerId, float],
) -> Parents:
    """Return the tree of announcements and lists: from the origin to the fastest members, from them to the others.

    Members in ``pullers`` need no link with the origin, which sends copies of its own to all that it is linked with.
    """
    first = sorted(relays, key=lambda node: (not node.address, -uplinks[node.peer_id]))[:_LIST_DEGREE]
    reached = [node for node in nodes if node.peer_id not in pullers and root.reaches(node)]
    if len(reached) <= _LIST_DEGREE:
        parents = {node.peer_id: root.peer_id for node in reached}
    else:
        parents = {node.peer_id: root.peer_id for node in first or reached}
    for turn, node in enumerate(node for node in nodes if node.peer_id not in parents):
        above = [one for one in first if one.reaches(node)] or [one for one in (root, *first) if _at_all(one, node)]
        if above:
            parents[node.peer_id] = above[turn % len(above)].peer_id
    return parents


def _at_all(one: RelayNode, other: RelayNode) -> bool:
    return one.reaches(other) or one.is_relayed_to(other)
