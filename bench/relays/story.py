"""Define the input and the result of a simulated broadcast: plan, conditions, faults, result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.wan.scenarios import Node, own_bounds_s
from peer.links.neighbours import Neighbour
from peer.relay.core.state.events import PlanChanged, Stripe
from rollcast.wire.ids import PeerId, PlanId, StripeId

ORIGIN = 0


# ---------------------------------------------------------------- faults


@dataclass(frozen=True, slots=True)
class Kill:
    """A node dies. ``silent``: no other node notices until the links time out, as if its host lost power."""

    at_s: float
    node: int
    silent: bool = False


@dataclass(frozen=True, slots=True)
class SetRates:
    at_s: float
    node: int
    up_mbit_s: float
    down_mbit_s: float


@dataclass(frozen=True, slots=True)
class Join:
    """A node joins; it does not exist before."""

    at_s: float
    node: int


@dataclass(frozen=True, slots=True)
class Lie:
    """A node begins to lie: from now on this share of the chunks that it sends is corrupt."""

    at_s: float
    node: int
    share: float


@dataclass(frozen=True, slots=True)
class DropLinks:
    """Every link between two nodes breaks."""

    at_s: float
    one: int
    other: int


@dataclass(frozen=True, slots=True)
class Replan:
    """The coordinator sends a new plan for the same nodes."""

    at_s: float


Fault = Kill | SetRates | Join | Lie | DropLinks | Replan
Planner = Callable[[PlanId, Sequence[int]], Mapping[int, PlanChanged]]


def name_of(number: int) -> PeerId:
    return PeerId(f"peer-{number}" if number else "origin")


def mesh_plan(plan_id: PlanId, numbers: Sequence[int]) -> dict[int, PlanChanged]:
    """Return Mutualcast's plan: stripe i goes from the origin through node i to all others.

    The origin may send to all nodes itself.
    """
    plans: dict[int, PlanChanged] = {}
    for me in numbers:
        others = [number for number in numbers if number != me]
        neighbours = tuple(_neighbour(me, other) for other in others)
        peers = tuple(name_of(other) for other in others if other != ORIGIN)
        if me == ORIGIN:
            stripes = tuple(Stripe(StripeId(other), (name_of(other),), relays=1) for other in others)
            plans[me] = PlanChanged(plan_id, neighbours, stripes, list_children=peers, direct_copies=True)
        else:
            parents = tuple(name_of(other) for other in others)
            plans[me] = PlanChanged(plan_id, neighbours, (Stripe(StripeId(me), peers),), parents=parents)
    return plans


def tree_plan(stripes: int, degree: int) -> Planner:
    """Return SplitStream's plan: each stripe has other inner nodes, most nodes are leaves. Links follow the trees."""

    def plan(plan_id: PlanId, numbers: Sequence[int]) -> dict[int, PlanChanged]:
        peers = [number for number in numbers if number != ORIGIN]
        children: dict[int, dict[int, list[int]]] = {number: {} for number in numbers}
        for stripe in range(1, stripes + 1):
            turn = stripe * len(peers) // stripes
            order = peers[turn:] + peers[:turn]
            children[ORIGIN][stripe] = order[:1]
            for place, number in enumerate(order):
                if below := order[place * degree + 1 : (place + 1) * degree + 1]:
                    children[number][stripe] = below
        return {number: _part(plan_id, number, numbers, children) for number in numbers}

    return plan


def _part(
    plan_id: PlanId, me: int, numbers: Sequence[int], children: Mapping[int, Mapping[int, Sequence[int]]]
) -> PlanChanged:
    below = {child for stripe in children[me].values() for child in stripe}
    above = {number for number in numbers if any(me in stripe for stripe in children[number].values())}
    return PlanChanged(
        plan_id,
        tuple(_neighbour(me, other) for other in sorted(below | above)),
        tuple(Stripe(StripeId(stripe), tuple(map(name_of, sent_to))) for stripe, sent_to in children[me].items()),
        list_children=tuple(name_of(child) for child in children[me].get(1, ())),
        parents=tuple(name_of(number) for number in sorted(above)),
        fallbacks=tuple(_neighbour(me, other) for other in numbers if other not in (me, *below, *above)),
    )


def _neighbour(me: int, other: int) -> Neighbour:
    return Neighbour(name_of(other), "peer" if other else "origin", f"{name_of(other)}:1", we_dial=other < me)


# ---------------------------------------------------------------- what is given and what comes out


@dataclass(frozen=True, slots=True)
class Conditions:
    """Properties of the simulated network other than rates and delays.

    Args:
        wire_overhead: bytes on the wire for each byte of a frame; 1.036 is TCP/IP.
        piece_bytes, low_water_bytes: see Port.
        lead_s: links and lists have this long before the announcement.
        handshake_round_trips: of a new link.
        notice_s: after a death, until the links' other ends and the coordinator know.
        silence_s: the same for a silent death.
        finish_s: for the check of a complete version.
        lan_mbit_s, lan_delay_s: links of the local network inside a site, in each direction.
    """

    wire_overhead: float = 1.0
    piece_bytes: float = 8192.0
    low_water_bytes: float = 16384.0
    tick_s: float = 0.05
    lead_s: float = 3.0
    handshake_round_trips: float = 3.0
    notice_s: float = 0.05
    silence_s: float = 6.0
    store_open_s: float = 0.002
    finish_s: float = 0.005
    lan_mbit_s: float = 1000.0
    lan_delay_s: float = 0.0001
    validate: bool = False


ORDINARY = Conditions()


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a broadcast.

    Args:
        seconds: from the announcement, or from joining, to the verified copy, by node; None: never.
        bound_s: least time in which all nodes can have a copy, those that join or die among them.
    """

    seconds: Mapping[int, float | None]
    nodes: Sequence[Node]
    bound_s: float
    site_copies: float  # copies that came into a site through its access link, on average over sites; 0: no sites
    source_bytes_ratio: float  # all that left the origin's uplink / size
    duplicates: Mapping[int, int]  # chunks that arrived at a node that held them
    given: Mapping[StripeId, int]  # chunk frames of each stripe that the origin sent
    sent_bytes: Mapping[tuple[int, int], int]  # of chunks that arrived, by sender and receiver
    accused: frozenset[PeerId]
    abandoned: Mapping[int, str]
    events: int

    @property
    def complete(self) -> bool:
        return all(seconds is not None for seconds in self.seconds.values())

    def own_ratios(self, size_bytes: int) -> dict[int, float]:
        """Return each receiver's time divided by its own bound; infinity for one that never got a copy."""
        bounds_s = own_bounds_s(size_bytes, self.nodes)
        return {
            number: float("inf") if seconds is None else seconds / bounds_s[number]
            for number, seconds in self.seconds.items()
        }

    @property
    def last_s(self) -> float:
        return max((seconds for seconds in self.seconds.values() if seconds is not None), default=0.0)

    @property
    def ratio(self) -> float:
        """Return the time of the last copy divided by the bound; infinity if a node never got one."""
        return self.last_s / self.bound_s if self.complete else float("inf")
