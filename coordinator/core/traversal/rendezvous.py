"""Send members the signed records of others, so that they find each other while the coordinator is down. Pure."""

from __future__ import annotations

import heapq

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, SendToPeer
from coordinator.core.events.reach_events import ReachEvent, RecordGiven
from coordinator.core.members.membership import Member
from coordinator.core.traversal.component import ReachComponent
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

SAMPLE = 12
"""Records sent to a member at a time: with those from its neighbours, enough that one of the peers answers."""
FIRST_S = 3.0
"""Seconds after a join: members that join or reconnect at the same time have sent their records by then."""
REFRESH_S = 600.0
_SENT_PER_TICK = 64  # members, of 12 records each; further ones wait for the next tick


class Rendezvous(ReachComponent):
    """The newest record of every connected member that can be dialled."""

    takes = (RecordGiven,)

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._records: dict[PeerId, pb.Signed] = {}
        self._addresses: dict[PeerId, tuple[str, ...]] = {}  # in each of these records
        self._turns: list[PeerId] = []  # order in which records are sent; members without one lose their turn
        self._has_turn: set[PeerId] = set()
        self._next = 0
        self._due: list[tuple[float, PeerId]] = []  # a heap; entries that ``_due_at`` contradicts are old
        self._due_at: dict[PeerId, float] = {}

    def joined(self, member: Member, now: float) -> list[Action]:
        """Schedule the first records for a new member."""
        self._schedule(member.peer_id, now + FIRST_S)
        return []

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """Stop sending the member's record; peers that have it notice themselves when it stops answering."""
        self._discard(peer_id)
        self._due_at.pop(peer_id, None)
        return []

    def received(self, event: ReachEvent, now: float) -> list[Action]:
        """Keep a member's newest record; one without addresses is of no use to others."""
        assert isinstance(event, RecordGiven)
        signed = pb.Signed.FromString(event.signed)
        addresses = tuple(pb.PeerRecord.FromString(signed.payload).addresses)
        if not addresses:
            self._discard(event.peer_id)
            return []
        if event.peer_id not in self._has_turn:
            self._has_turn.add(event.peer_id)
            self._turns.append(event.peer_id)
        self._records[event.peer_id], self._addresses[event.peer_id] = signed, addresses
        self._state.reach.records = len(self._records)
        return []

    def tick(self, now: float) -> list[Action]:
        """Send records to the members that are due."""
        actions: list[Action] = []
        while self._due and self._due[0][0] <= now and len(actions) < _SENT_PER_TICK:
            due, peer_id = heapq.heappop(self._due)
            if self._due_at.get(peer_id) != due:
                continue
            self._schedule(peer_id, now + REFRESH_S)
            sample = self._sample(peer_id)
            if sample:
                message = pb.CoordinatorMessage(peer_records=pb.PeerRecords(records=sample))
                actions.append(SendToPeer(peer_id, message))
        return actions

    def _discard(self, peer_id: PeerId) -> None:
        self._records.pop(peer_id, None)
        self._addresses.pop(peer_id, None)
        self._state.reach.records = len(self._records)

    def _schedule(self, peer_id: PeerId, due: float) -> None:
        self._due_at[peer_id] = due
        heapq.heappush(self._due, (due, peer_id))

    def _sample(self, receiver: PeerId) -> list[pb.Signed]:
        """Return records for a member: the origin's, since versions begin there, and others in turn, equally often.

        A record with an address that may be a third party's is not sent.
        """
        members = self._state.members
        origin = members.origin
        chosen = [origin.peer_id] if origin is not None and origin.peer_id in self._records else []
        for _ in range(min(len(self._turns), 2 * SAMPLE)):
            if len(chosen) >= SAMPLE:
                break
            peer_id = self._take_turn()
            if peer_id is not None and peer_id not in chosen and self._may_be_sent(peer_id):
                chosen.append(peer_id)
        return [self._records[peer_id] for peer_id in chosen[:SAMPLE] if peer_id != receiver]

    def _may_be_sent(self, peer_id: PeerId) -> bool:
        """Whether a member's record names no address that might be a third party's."""
        if self._state.members.reputation(peer_id).kept_out:
            return False
        reach, addresses = self._state.reach.of(peer_id), self._addresses[peer_id]
        return not reach.judge(" ".join(one for one in addresses if one not in reach.circuits))[1]

    def _take_turn(self) -> PeerId | None:
        """Return the member whose record is next; None if it has no record any more, and loses its turn."""
        self._next %= len(self._turns)
        peer_id = self._turns[self._next]
        if peer_id in self._records:
            self._next += 1
            return peer_id
        self._has_turn.discard(peer_id)
        self._turns[self._next] = self._turns[-1]
        self._turns.pop()
        return None
