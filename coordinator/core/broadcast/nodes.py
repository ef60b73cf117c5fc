"""Define the data that relay planning works on: members and plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from coordinator.core.reach.holes import can_punch
from rollcast.wire.address_scope import Scope, may_be_named
from rollcast.wire.ids import PeerId, StripeId

Parents = Mapping[PeerId, PeerId]  # child -> parent; the root has none
PlanMode = Literal["none", "mesh", "trees"]

_SLOWER_SHARE = 0.9  # share of the plan's rate; rates are measured, and a downlink that just suffices is no limit


@dataclass(frozen=True, slots=True)
class RelayNode:
    """One member, as relay planning sees it.

    Args:
        address: host:port that others may dial; empty if there is none, or if dialing it fails.
        may_relay: whether it may relay; False while it is quarantined, paused or leaving.
        uplink_bytes_per_second: measured uplink, within its owner's cap; None if not known.
        uplink_confidence: confidence in that figure, 0 to 1.
        downlink_bytes_per_second: limit of what it receives; None if no limit was seen.
        metered: whether its upload costs money.
        region: region as configured; empty if not known.
        site: the same for members that share a local network; empty if not known.
        rtt_s: median round trip of its links in seconds; 0 if not known.
        hole: class of coordinator.core.reach.holes, which decides to which members holes can be punched.
        avoid: members to which neither a hole punch nor the local network led lately.
        circuits: its addresses through relays of libp2p.
        local_address: address that others of its site dial; empty if there is none.
        scope: how far its address leads: one in a private network means nothing, or another machine, elsewhere.
        home: scope of its own connection to the coordinator.
        site_links: members of its site with which it had a link since both joined.
        given_up: members with which it has no link, because one end rejected a chunk of the other.
    """

    peer_id: PeerId
    role: str
    address: str
    may_relay: bool
    uplink_bytes_per_second: float | None = None
    uplink_confidence: float = 1.0
    downlink_bytes_per_second: float | None = None
    metered: bool = False
    region: str = ""
    site: str = ""
    rtt_s: float = 0.0
    hole: int = 0
    avoid: frozenset[PeerId] = frozenset()
    circuits: tuple[str, ...] = ()
    local_address: str = ""
    scope: Scope = Scope.PUBLIC
    home: Scope = Scope.PUBLIC
    given_up: frozenset[PeerId] = frozenset()
    site_links: frozenset[PeerId] = frozenset()

    @property
    def lan(self) -> str:
        """Local network, the same for all members that reach each other within their site; empty if there is none."""
        return self.site if self.local_address else ""

    def reaches(self, other: RelayNode) -> bool:
        """Whether there can be a direct link between the two, whichever end dials."""
        if other.peer_id in self.given_up:
            return False
        if self.can_dial(other) or other.can_dial(self):
            return True
        if not can_punch(self.hole, other.hole) and not self.shares_lan_with(other):
            return False
        return other.peer_id not in self.avoid

    def can_dial(self, other: RelayNode) -> bool:
        """Whether this member may be told the other's address."""
        return other.address != "" and may_be_named(other.scope, self.home)

    def shares_lan_with(self, other: RelayNode) -> bool:
        """Whether each of the two has an address that leads to it within the site of both."""
        return self.lan != "" and self.lan == other.lan

    def is_relayed_to(self, other: RelayNode) -> bool:
        """Whether a link through a libp2p relay is possible: a last resort, as every byte crosses the relay twice."""
        return bool(self.circuits and other.circuits) and other.peer_id not in self.given_up


@dataclass(frozen=True, slots=True)
class PlanShape:
    """Settings of relay planning.

    Args:
        mesh_peers_max: most members besides the origin for which plans are meshes, in which all relay to all.
        stripes: number of trees in plans for more members.
        fallbacks_max: most members that are named to each member as fallbacks.
        unknown_uplink_bytes_per_second: assumed for an uplink without a measurement, unless most known ones are slower.
        mirrors: https URLs, named to every member as its last fallbacks.
    """

    mesh_peers_max: int = 24
    stripes: int = 8
    fallbacks_max: int = 3
    unknown_uplink_bytes_per_second: float = 1.25e6
    mirrors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stripe:
    """One tree over the members, rooted at the origin; ``share`` is the share of all chunks that it carries."""

    stripe: StripeId
    parents: Parents
    share: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Stripes whose shares add up to 1, with DIRECT_STRIPE among them if the origin may send to all members itself.

    Args:
        bytes_per_second: rate at which every member receives if rates are as the plan assumes.
        list_parents: the tree down which announcements and chunk lists go.
        pullers: members whose downlinks take less than that rate. Nothing is pushed to them: they request chunks from
            their parents in the stripes, as fast as they can receive.
    """

    root: PeerId
    mode: PlanMode
    stripes: tuple[Stripe, ...]
    bytes_per_second: float
    list_parents: Parents
    pullers: frozenset[PeerId] = frozenset()


def slower_than(rate: float, nodes: Iterable[RelayNode]) -> frozenset[PeerId]:
    """Return the members whose downlinks are known to take less than this rate, in bytes a second."""
    return frozenset(
        node.peer_id
        for node in nodes
        if node.downlink_bytes_per_second is not None and node.downlink_bytes_per_second < _SLOWER_SHARE * rate
    )
