"""Assign relays to members that cannot be dialled. Pure: times are the core's clock in seconds.

A relay is a member that others can dial and whose owner lets it relay links of others (circuit relay v2 of libp2p;
docs/p2p.md). A member is assigned a few relays, those with the least load first, and keeps reservations at two of them.
An assigned relay stays assigned until it leaves, so that links do not break only to balance the load.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, SendToPeer
from coordinator.core.members.membership import Member
from coordinator.core.reach.address_book import Reach, host_part
from coordinator.core.traversal.component import ReachComponent
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

NAMED_MOST = 4
KEPT = 2
"""Number of assigned relays at which a member keeps reservations; see peer/p2p/circuits/reservations.py."""
_ASSIGN_AGAIN_S = 10.0  # because dial-backs may change which members can be dialled
_PAUSE_S = 1.0  # least pause between assignments, however often members report something new
_MEMBERS_A_SECOND = 2000  # bounds assignments in large fleets to a small share of the coordinator's time
_CIRCUIT = "/p2p-circuit/p2p/"


class Circuits(ReachComponent):
    """The relays that each member was assigned."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._named: dict[PeerId, tuple[str, ...]] = {}  # addresses
        self._assigned_at = self._due_at = float("-inf")

    def joined(self, member: Member, now: float) -> list[Action]:
        """Assign relays again to a member that joined: its process may have lost the earlier ones."""
        return self.left(member.peer_id, now)

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """Assign other relays soon: the member that left may have been one."""
        self._named.pop(peer_id, None)
        self._assign_soon()
        return []

    def reported(self, member: Member, now: float) -> list[Action]:
        """Assign relays again soon: the member may have become one, or may not be one any more."""
        self._assign_soon()
        return []

    def tick(self, now: float) -> list[Action]:
        """Send relays to the members that need them."""
        if now < self._due_at:
            return []
        self._assigned_at, self._due_at = now, now + _ASSIGN_AGAIN_S
        relays = self._relays()  # without any, which member would need one does not matter
        needing = [member.peer_id for member in self._state.members if self._needs(member)] if relays else []
        chosen = spread(needing, relays, self._named)
        changed = [peer_id for peer_id in chosen if chosen[peer_id] != self._named.get(peer_id, ())]
        changed += [peer_id for peer_id in self._named if peer_id not in chosen]
        actions: list[Action] = [_naming(peer_id, chosen.get(peer_id, ())) for peer_id in changed]
        self._named = chosen
        return actions

    def credible(self, peer_id: PeerId, circuits: Iterable[str]) -> tuple[str, ...]:
        """Return the addresses that lead to this member through connected relays; others are never passed on."""
        return tuple(one for one in circuits if self._leads_to(peer_id, one))

    def _assign_soon(self) -> None:
        pause_s = max(_PAUSE_S, len(self._state.members) / _MEMBERS_A_SECOND)
        self._due_at = min(self._due_at, self._assigned_at + pause_s)

    def _leads_to(self, peer_id: PeerId, circuit: str) -> bool:
        address, _, to = circuit.partition(_CIRCUIT)
        relay = self._state.members.get(PeerId(address.rpartition("/")[2]))
        return to == peer_id and relay is not None and relay.peer_id != peer_id and self._takes(relay) == address

    def _needs(self, member: Member) -> bool:
        return not member.reputation.kept_out and not self._state.reach.of(member.peer_id).address

    def _relays(self) -> dict[PeerId, str]:
        """Return the address of each member that is a relay."""
        named = ((member.peer_id, self._takes(member)) for member in self._state.members)
        return {peer_id: address for peer_id, address in named if address}

    def _takes(self, member: Member) -> str:
        """Return the address at which this member takes reservations of others; empty if it takes none."""
        reach = self._state.reach.of(member.peer_id)
        takes = bool(reach.relay_address and reach.address) and member.may_relay and not member.metered
        return reach.relay_address if takes and _is_own(member.peer_id, reach) else ""


def spread(
    needing: Iterable[PeerId], relays: Mapping[PeerId, str], named: Mapping[PeerId, tuple[str, ...]]
) -> dict[PeerId, tuple[str, ...]]:
    """Assign relays to each member that needs some: its earlier ones that are still connected, then the least loaded.

    Args:
        needing: members that need relays.
        relays: address of each relay.
        named: addresses that each member was assigned before.

    Returns:
        At most ``NAMED_MOST`` addresses for each member; members for which there is no relay are left out.
    """
    here = frozenset(relays.values())
    kept = {peer_id: tuple(one for one in named.get(peer_id, ()) if one in here) for peer_id in needing}
    load = Counter(one for addresses in kept.values() for one in addresses[:KEPT])
    order = {address: number for number, address in enumerate(relays.values())}
    heap = [(load[address], order[address], address) for address in order]
    heapq.heapify(heap)
    return {peer_id: filled for peer_id, one in kept.items() if (filled := _filled(peer_id, one, relays, heap))}


def _filled(
    peer_id: PeerId, kept: tuple[str, ...], relays: Mapping[PeerId, str], heap: list[tuple[int, int, str]]
) -> tuple[str, ...]:
    """Return ``kept`` with more relays up to ``NAMED_MOST``; the heap holds each relay's load and order."""
    mine = relays.get(peer_id, "")
    passed: list[tuple[int, int, str]] = []
    addresses = list(kept)
    while heap and len(addresses) < NAMED_MOST:
        load, order, address = heapq.heappop(heap)
        if address not in kept and address != mine:
            load += len(addresses) < KEPT
            # Relays assigned in reserve go behind their equals, so that reserves are not the same for all members.
            order += len(relays) if len(addresses) >= KEPT else 0
            addresses.append(address)
        passed.append((load, order, address))
    for one in passed:
        heapq.heappush(heap, one)
    return tuple(addresses)


def _naming(peer_id: PeerId, addresses: tuple[str, ...]) -> SendToPeer:
    return SendToPeer(peer_id, pb.CoordinatorMessage(circuit_relays=pb.CircuitRelays(addresses=addresses)))


def _is_own(peer_id: PeerId, reach: Reach) -> bool:
    """Whether a relay's address names the member at one of its own hosts, so that it cannot have third parties dialled.

    Its hosts are the one from which its session comes, and the one that it advertises once others reached it there.
    """
    parts = reach.relay_address.split("/")  # "", "ip4", host, "tcp", port, "p2p", peer id
    found = reach.address.split(" ") if reach.dialable else ()
    hosts = {reach.host, *(host_part(one) for one in found if "/" not in one)}
    return len(parts) == 7 and parts[3] == "tcp" and parts[5:] == ["p2p", peer_id] and parts[2] in hosts - {""}
