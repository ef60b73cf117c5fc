"""Compute, for many members, the rate that interior-disjoint trees can carry, and choose the relays of each tree.

A relay with uplink u carries floor(u K / R) copies of one of K stripes of rate R / K. R is the largest rate at which
these copies suffice for every member in every stripe; what the rounding costs falls with K.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import accumulate

from capacity.model.broadcast_bound import fluid_rate
from coordinator.core.broadcast.nodes import RelayNode
from coordinator.core.reach.holes import CLASSES, can_punch, classes_within, lets_in
from rollcast.wire.ids import PeerId

_STEPS = 12  # bisections in the search for the rate, which find it to 1e-4 of its value
_SETTLE_FOR = 0.99  # share of the best rate that is used, so that a join or leave need not change the rate for all
_KEEP_ABOVE = 0.92  # a rate that still fits is kept while it is above this share of the best
_SUFFICIENT_SHARE = 0.98  # see _interior
_EVENED_MOST = 2.0  # times the plan's rate that one stripe may carry: the origin has few copies for a faster one
_HOLES = range(CLASSES)
_WITHIN = [classes_within(hole) for hole in _HOLES]
_NEARLY_ALL = 0.9  # share of the members from which a local network counts as holding all of them
_FEW_SHARE = 0.5  # share of the copies that reachable members need, up to which hidden relays find takers anywhere
_HIDDEN_SHARE = 0.95  # share of the copies that members reachable by peers behind NAT need which such peers may carry


@dataclass(slots=True)
class Groups:
    """The relays of each stripe, and the copies that each carries.

    Args:
        bytes_per_second: R, the rate of all stripes together.
        stripe_of: relay -> stripe, 0 to K - 1.
        copies: relay -> copies of its stripe that it carries.
        root_copies: copies that the origin carries, by stripe.
        costs: member -> share of a copy that it takes, for members whose downlink is slower than R.
    """

    bytes_per_second: float
    stripe_of: dict[PeerId, int]
    copies: dict[PeerId, int]
    root_copies: list[int]
    costs: dict[PeerId, float]


@dataclass(slots=True)
class _Pool:
    """Summarises the members for the search for the rate. Rates are in bytes a second."""

    stripes: int
    source: float
    count: int  # members without the origin
    downlinks: list[float]  # known downlinks, ascending
    downlink_sums: list[float]  # sums of the first 0, 1, 2 ... of them
    uplinks: list[float]  # the relays': those that can be dialled, then by descending class of their holes
    dialable_relays: int
    hidden_relays: list[int]  # relays that cannot be dialled, by class of their holes
    reached: list[int]  # members that peers with this class of hole reach

    def copies(self, rate: float) -> list[int]:
        return [int(uplink * self.stripes / rate) for uplink in self.uplinks]

    def root_copies(self, rate: float) -> int:
        return max(self.stripes, int(self.source * self.stripes / rate))

    def needed(self, rate: float) -> float:
        """Return the copies of each stripe that the members need at this rate."""
        slower = bisect_left(self.downlinks, rate)
        return self.count - slower + self.downlink_sums[slower] / rate

    def capacity(self, rate: float) -> float:
        """Return the usable copies, over all stripes, that the origin and the relays carry at this rate."""
        copies = self.copies(rate)
        end, hidden = len(copies), []
        for count in self.hidden_relays:
            hidden.append(sum(copies[end - count : end]))
            end -= count
        return self.root_copies(rate) + sum(copies[: self.dialable_relays]) + self.usable(hidden, self.stripes)

    def usable(self, hidden: Sequence[int], stripes: int) -> float:
        """Return how many copies that relays behind NAT carry some member can take.

        Args:
            hidden: copies that they carry, by class of their holes.
            stripes: number of stripes to which these copies belong.
        """
        usable = float(sum(hidden))
        for hole, reached in enumerate(self.reached):  # which reaches those that classes within it do
            if reached < self.count:
                beyond = sum(count for other, count in enumerate(hidden) if other not in _WITHIN[hole])
                usable = min(usable, beyond + _HIDDEN_SHARE * stripes * reached)
        return usable

    def bound(self) -> float:
        """Return the rate that the fluid model allows, in bytes a second."""
        unlimited = [float("inf")] * (self.count - len(self.downlinks))
        return fluid_rate(self.source, self.uplinks, self.downlinks + unlimited)

    def best_rate(self) -> float:
        """Return the largest rate at which all copies together suffice, in bytes a second."""
        high = self.bound()
        if self.fits(high):
            return high
        low = high / 2
        while not self.fits(low) and low > high / 1024:
            low /= 2
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.fits(middle) else (low, middle)
        return low

    def fits(self, rate: float) -> bool:
        return self.capacity(rate) >= self.stripes * self.needed(rate)


def in_one_lan(nodes: Sequence[RelayNode], root: RelayNode) -> Sequence[RelayNode]:
    """Return the members as ``make_groups`` takes them, with local addresses where nearly all share a local network.

    Members of such a network count as dialable, since nearly all others can dial them; in smaller networks the few
    additional links do not change the rate.
    """
    lans = Counter(node.lan for node in nodes if node.lan)
    lan, count = max(lans.items(), key=lambda one: (one[1], one[0]), default=("", 0))
    if count < _NEARLY_ALL * len(nodes) or not (root.address or root.lan == lan):
        return nodes
    return [replace(node, address=node.address or node.local_address) if node.lan == lan else node for node in nodes]


def make_groups(
    nodes: Sequence[RelayNode],
    root: RelayNode,
    uplinks: Mapping[PeerId, float],
    stripes: int,
    before: Groups | None,
) -> Groups:
    """Choose the relays, the rate and the groups; as much as possible stays as it was before.

    Args:
        nodes: members without the root, in the order they joined.
        uplinks: uplink of every member, the root included, in bytes a second.
        before: the previous groups; None for a first plan.
    """
    relays = _interior(nodes, root, uplinks, stripes)
    pool = _pool(nodes, relays, uplinks[root.peer_id], uplinks, stripes)
    best = pool.best_rate()
    rate = _SETTLE_FOR * best
    if before is not None and len(before.root_copies) == stripes:
        kept = before.bytes_per_second
        if _KEEP_ABOVE * best <= kept <= best:
            rate = kept
    copies = {relay.peer_id: count for relay, count in zip(relays, pool.copies(rate), strict=True) if count > 0}
    stripe_of = {} if before is None else {one: k for one, k in before.stripe_of.items() if one in copies}
    used = [relay for relay in relays if relay.peer_id in copies]
    free, limited = _by_reach(used, pool, copies)
    for relays_of_class in limited:
        _assign(relays_of_class, stripe_of, copies, stripes)
    totals = zip(*(_totals(ones, stripe_of, copies, stripes) for ones in limited), strict=True)
    usable = [pool.usable(counts, 1) for counts in totals]
    _assign(free, stripe_of, copies, stripes)
    needs = [pool.needed(rate) - count for count in usable]
    root_copies = _share_root(pool.root_copies(rate), _totals(free, stripe_of, copies, stripes), needs)
    wanted = [need - own for need, own in zip(needs, root_copies, strict=True)]
    _balance(free, stripe_of, copies, wanted)
    copies |= _evened(free, stripe_of, uplinks, wanted, rate / stripes)
    costs = {
        one.peer_id: one.downlink_bytes_per_second / rate
        for one in nodes
        if one.downlink_bytes_per_second is not None and one.downlink_bytes_per_second < rate
    }
    return Groups(rate, stripe_of, copies, root_copies, costs)


def _by_reach(
    relays: Sequence[RelayNode], pool: _Pool, copies: Mapping[PeerId, int]
) -> tuple[list[RelayNode], list[list[RelayNode]]]:
    """Return the relays that find takers for all their copies, and the others by class of their holes."""
    free = [relay for relay in relays if relay.address]
    limited: list[list[RelayNode]] = [[] for _ in _HOLES]
    for relay in relays:
        if not relay.address:
            limited[relay.hole].append(relay)
    carried = [sum(copies[one.peer_id] for one in ones) for ones in limited]
    for hole, ones in enumerate(limited):
        few = sum(carried[one] for one in _WITHIN[hole]) <= _FEW_SHARE * pool.stripes * pool.reached[hole]
        if lets_in(hole) and (pool.reached[hole] == pool.count or few):
            free += ones
            limited[hole] = []
    return free, limited


def _interior(
    nodes: Sequence[RelayNode], root: RelayNode, uplinks: Mapping[PeerId, float], stripes: int
) -> list[RelayNode]:
    """Return the members that relay. Less suitable kinds relay only where the others alone reach too low a rate.

    The kinds are, in order: members that can be dialled and were measured; those that were not measured; members behind
    NAT that punch holes to each other; other members behind NAT, which can send only to peers that can be dialled. A
    member whose downlink would hold back those below it never relays.
    """
    able = [node for node in nodes if node.may_relay and not node.metered and root.reaches(node)]
    bound = _pool(nodes, able, uplinks[root.peer_id], uplinks, stripes).bound()
    able = [node for node in able if node.downlink_bytes_per_second is None or node.downlink_bytes_per_second >= bound]
    dialable = [node for node in able if node.address]
    known = [node for node in dialable if node.uplink_bytes_per_second is not None]
    unknown = [node for node in dialable if node.uplink_bytes_per_second is None]
    hidden = sorted((node for node in able if not node.address), key=lambda node: -node.hole)
    punching = [node for node in hidden if lets_in(node.hole)]
    plain = [node for node in hidden if not lets_in(node.hole)]
    source = uplinks[root.peer_id]
    choices = [known]
    for more in (unknown, punching, plain):
        if more:
            choices.append(choices[-1] + more)
    rates = [_pool(nodes, relays, source, uplinks, stripes).best_rate() for relays in choices]
    enough = next(index for index, rate in enumerate(rates) if rate >= _SUFFICIENT_SHARE * max(rates))
    chosen = choices[enough]
    if not chosen and not all(root.reaches(node) for node in nodes):
        return [node for node in nodes if node.may_relay and node.address]  # metered ones, as no other member can
    return chosen


def _pool(
    nodes: Sequence[RelayNode],
    relays: Sequence[RelayNode],
    source: float,
    uplinks: Mapping[PeerId, float],
    stripes: int,
) -> _Pool:
    hidden = _hidden_by_class(nodes)
    downlinks = sorted(one.downlink_bytes_per_second for one in nodes if one.downlink_bytes_per_second is not None)
    return _Pool(
        stripes=stripes,
        source=source,
        count=len(nodes),
        downlinks=downlinks,
        downlink_sums=list(accumulate(downlinks, initial=0.0)),
        uplinks=[uplinks[relay.peer_id] for relay in relays],
        dialable_relays=sum(bool(relay.address) for relay in relays),
        hidden_relays=_hidden_by_class(relays),
        reached=[
            len(nodes) - sum(count for other, count in enumerate(hidden) if not can_punch(hole, other))
            for hole in _HOLES
        ],
    )


def _hidden_by_class(nodes: Sequence[RelayNode]) -> list[int]:
    counts = [0] * len(_HOLES)
    for node in nodes:
        if not node.address:
            counts[node.hole] += 1
    return counts


def _totals(
    relays: Sequence[RelayNode], stripe_of: Mapping[PeerId, int], copies: Mapping[PeerId, int], stripes: int
) -> list[int]:
    """Return how many copies of each stripe these relays carry."""
    totals = [0] * stripes
    for relay in relays:
        if relay.peer_id in stripe_of:
            totals[stripe_of[relay.peer_id]] += copies[relay.peer_id]
    return totals


def _assign(
    relays: Sequence[RelayNode], stripe_of: dict[PeerId, int], copies: Mapping[PeerId, int], stripes: int
) -> None:
    """Assign a stripe to each new relay, the strongest first: one with few copies, and none yet in its region."""
    totals = _totals(relays, stripe_of, copies, stripes)
    heads = {(relay.region, stripe_of[relay.peer_id]) for relay in relays if relay.peer_id in stripe_of}
    fresh = [relay for relay in relays if relay.peer_id not in stripe_of]
    fresh.sort(key=lambda relay: -copies[relay.peer_id])
    for relay in fresh:
        count, region = copies[relay.peer_id], relay.region
        near = min(totals) + count
        stripe = min((total > near, (region, k) in heads, total, k) for k, total in enumerate(totals))[3]
        stripe_of[relay.peer_id] = stripe
        totals[stripe] += count
        heads.add((region, stripe))


def _share_root(count: int, totals: Sequence[int], needs: Sequence[float]) -> list[int]:
    """Return the origin's copies by stripe: one of each, and the rest of ``count`` for the stripes that lack most."""
    root_copies = [1] * len(totals)
    lacks = [(total + 1 - need, stripe) for stripe, (total, need) in enumerate(zip(totals, needs, strict=True))]
    heapify(lacks)
    for _ in range(count - len(totals)):
        margin, stripe = lacks[0]
        heapreplace(lacks, (margin + 1, stripe))
        root_copies[stripe] += 1
    return root_copies


def _balance(
    relays: Sequence[RelayNode], stripe_of: dict[PeerId, int], copies: Mapping[PeerId, int], needs: Sequence[float]
) -> None:
    """Move as few relays as possible from stripes with copies to spare to stripes that lack some."""
    members: list[list[PeerId]] = [[] for _ in needs]
    margins = [-need for need in needs]
    for relay in relays:
        stripe = stripe_of[relay.peer_id]
        members[stripe].append(relay.peer_id)
        margins[stripe] += copies[relay.peer_id]
    for _ in range(len(relays)):
        poor, rich = margins.index(min(margins)), margins.index(max(margins))
        movable = [one for one in members[rich] if copies[one] <= margins[rich]] if margins[poor] < 0 else []
        if not movable:
            return
        sufficient = [one for one in movable if copies[one] >= -margins[poor]]
        moved = min(sufficient, key=copies.__getitem__) if sufficient else max(movable, key=copies.__getitem__)
        members[rich].remove(moved)
        members[poor].append(moved)
        margins[rich] -= copies[moved]
        margins[poor] += copies[moved]
        stripe_of[moved] = poor


def _evened(
    relays: Sequence[RelayNode],
    stripe_of: Mapping[PeerId, int],
    uplinks: Mapping[PeerId, float],
    wanted: Sequence[float],
    rate: float,
) -> dict[PeerId, int]:
    """Return the copies of relays so that those of a stripe are as lightly loaded as its copies allow.

    Rounding leaves stripes with copies to spare. A relay that carries all the copies it can while another one has some
    to spare makes its stripe slower than it need be, and the origin gives each stripe what that carries.

    Args:
        wanted: copies that the relays of each stripe must carry together.
        rate: bytes a second of one stripe, which every stripe sustains at least.
    """
    members: list[list[RelayNode]] = [[] for _ in wanted]
    for relay in relays:
        members[stripe_of[relay.peer_id]].append(relay)
    copies: dict[PeerId, int] = {}
    for ones, needed in zip(members, wanted, strict=True):
        rates = [uplinks[one.peer_id] for one in ones]
        low, high = rate, _EVENED_MOST * rate
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(int(one / middle) for one in rates) >= needed else (low, middle)
        copies |= {one.peer_id: max(1, int(uplink / low)) for one, uplink in zip(ones, rates, strict=True)}
    return copies
