"""What relay planning works on: members and plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coordinator.core.reach.holes import can_punch
from rollcast.wire.ids import PeerId, StripeId

Parents = Mapping[PeerId, PeerId]  # child -> parent; the root has none
PlanMode = Literal["none", "mesh", "trees"]


@dataclass(frozen=True, slots=True)
class RelayNode:
    """What planning needs to know of a member.

    Args:
        address: host:port that others may dial, empty if none or if nobody gets through there.
        may_relay: False for those that are quarantined, paused or leaving.
        uplink_bytes_per_second: as measured, within its owner's cap; None: not known.
        uplink_confidence: 0 to 1, how far to trust that figure.
        downlink_bytes_per_second: the limit of what it receives; None: none was seen.
        metered: its upload costs money.
        region: as configured, empty: not known.
        site: the same for those that share a local network, empty: not known.
        rtt_s: median of its links, 0: not known.
        hole: class of coordinator.core.reach.holes: between whom holes can be punched.
        avoid: members to whom neither a hole nor the local network led lately.
        circuits: its addresses through relays of libp2p.
        local_address: where others of its site dial it, empty if nowhere.
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

    @property
    def lan(self) -> str:
        """The same for those that reach each other within their site; empty: nobody does."""
        return self.site if self.local_address else ""

    def reaches(self, other: RelayNode) -> bool:
        """Whether there can be a link of its own between the two, whoever dials."""
        if self.address or other.address:
            return True
        if not can_punch(self.hole, other.hole) and not self.shares_lan_with(other):
            return False
        return other.peer_id not in self.avoid

    def shares_lan_with(self, other: RelayNode) -> bool:
        """Whether each of the two has an address that leads to it within the site of both."""
        return self.lan != "" and self.lan == other.lan

    def is_relayed_to(self, other: RelayNode) -> bool:
        """Whether there can be one through a relay of libp2p: a last resort, as all bytes pass somebody's twice."""
        return bool(self.circuits and other.circuits)


@dataclass(frozen=True, slots=True)
class PlanShape:
    """How plans are made.

    Args:
        mesh_peers_max: up to so many members besides the origin everybody relays to everybody.
        stripes: trees above that number.
        fallbacks_max: members named as fallbacks to each.
        unknown_uplink_bytes_per_second: taken for an uplink that nobody measured, unless most known ones are slower.
        mirrors: https URLs, named to everybody as the last fallbacks.
    """

    mesh_peers_max: int = 24
    stripes: int = 8
    fallbacks_max: int = 3
    unknown_uplink_bytes_per_second: float = 1.25e6
    mirrors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stripe:
    """One tree over the members, rooted at the origin. Its chunks are the ``share`` of all."""

    stripe: StripeId
    parents: Parents
    share: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Stripes whose shares add up to 1; DIRECT_STRIPE among them where the origin may send to all itself.

    Args:
        bytes_per_second: what everybody receives if rates are as planned with.
        list_parents: the tree down which announcements and chunk lists go.
    """

    root: PeerId
    mode: PlanMode
    stripes: tuple[Stripe, ...]
    bytes_per_second: float
    list_parents: Parents
