"""Send the core's actions to peers, as messages into their sessions.

Messages that go to very many peers at once are sent a few at a time, so that the loop does other work between them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import assert_never

from coordinator.core.events.actions import (
    EndSession,
    Neighbour,
    RefuseSession,
    RevokeLeases,
    SendLeases,
    SendPlan,
    SendProbe,
    SendToPeer,
    StopPeer,
    StripeAssignment,
    TellActivation,
)
from coordinator.ledger.store import RunStore
from coordinator.shell.sessions import Sessions
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import lease_to_pb

ToPeer = (
    SendLeases
    | RevokeLeases
    | SendPlan
    | SendProbe
    | SendToPeer
    | TellActivation
    | StopPeer
    | EndSession
    | RefuseSession
)

ANNOUNCEMENTS_KEPT = 32  # in memory; older ones are read from the ledger
AT_ONCE = 10  # messages
PAUSE_S = 0.01  # 1,000 messages per second: each has an answer, and both together take some hundred microseconds


class PeerSender:
    """Sends actions to peers; its owner must ``close`` it."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._fan_out = FanOut(sessions.send)

    def send(self, action: ToPeer) -> None:
        """Send an action's message; it is discarded if the peer has no session."""
        match action:
            case SendLeases():
                self._sessions.send(action.peer_id, leases_message(action))
            case RevokeLeases():
                self._sessions.send(action.peer_id, revoke_message(action))
            case SendPlan():
                self.later((action.peer_id,), partial(plan_message, action))
            case SendProbe():
                self._sessions.send(action.peer_id, probe_message(action))
            case SendToPeer():
                self._sessions.send(action.peer_id, action.message)
            case TellActivation():
                self._sessions.send(action.peer_id, activation_message(action))
            case StopPeer():
                self._sessions.stop(action.peer_id, action.reason)
            case EndSession():
                self._sessions.end(action.peer_id, action.reason)
            case RefuseSession():
                self._sessions.refuse(action.peer_id, action.code, action.what, action.fix)
            case _:
                assert_never(action)

    def later(self, peer_ids: Sequence[PeerId], message: Callable[[], pb.CoordinatorMessage]) -> None:
        """Send a message that many peers get at once, a few peers at a time; ``message`` makes it just before."""
        self._fan_out.send(peer_ids, message)

    def close(self) -> None:
        """Discard the messages that wait."""
        self._fan_out.close()


class FanOut:
    """Sends messages in the order of the calls: a few at once, the others a few at a time.

    Each is made when it is sent: a plan's message takes some 60 us, so 10,000 of them would hold the loop for 0.6 s.
    """

    def __init__(self, send: Callable[[PeerId, pb.CoordinatorMessage], None]) -> None:
        self._send = send
        self._waiting: deque[tuple[PeerId, Callable[[], pb.CoordinatorMessage]]] = deque()
        self._left = AT_ONCE  # messages until the timer fires
        self._timer: asyncio.TimerHandle | None = None

    def send(self, peer_ids: Sequence[PeerId], message: Callable[[], pb.CoordinatorMessage]) -> None:
        """Send each peer what ``message`` returns now, or after those that wait."""
        self._waiting.extend((peer_id, message) for peer_id in peer_ids)
        self._go_on()

    def close(self) -> None:
        """Discard the messages that wait."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        while self._waiting and self._left:
            self._left -= 1
            peer_id, message = self._waiting.popleft()
            self._send(peer_id, message())
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._next_turn)

    def _next_turn(self) -> None:
        self._timer, self._left = None, AT_ONCE
        if self._waiting:
            self._go_on()


class Announcements:
    """The announcements that are sent to peers."""

    def __init__(self, ledger: RunStore) -> None:
        self._ledger = ledger
        self._newest: OrderedDict[tuple[Epoch, Version], pb.VersionAnnouncement] = OrderedDict()

    def in_memory(self, epoch: Epoch, version: Version) -> pb.VersionAnnouncement | None:
        """Return the announcement if it is in memory; None otherwise."""
        return self._newest.get((epoch, version))

    def remember(self, epoch: Epoch, version: Version, announcement: pb.VersionAnnouncement) -> None:
        """Keep an announcement in memory; beyond ANNOUNCEMENTS_KEPT the oldest is discarded."""
        self._newest[(epoch, version)] = announcement
        while len(self._newest) > ANNOUNCEMENTS_KEPT:
            self._newest.popitem(last=False)

    async def stored(self, version: Version) -> pb.VersionAnnouncement:
        """Load the announcement from the ledger, for which only the store's own limit on an outage holds.

        Raises:
            StoreError: the ledger has none of this version.
        """
        stored = await self._ledger.version(version)
        if stored is None:
            raise StoreError(f"the announcement of version {version} is not in the ledger")
        announcement = pb.VersionAnnouncement.FromString(stored.announcement)
        self.remember(stored.epoch, stored.version, announcement)
        return announcement


def leases_message(action: SendLeases) -> pb.CoordinatorMessage:
    """Return the message with new leases."""
    return pb.CoordinatorMessage(leases=pb.Leases(leases=[lease_to_pb(lease) for lease in action.leases]))


def revoke_message(action: RevokeLeases) -> pb.CoordinatorMessage:
    """Return the message that revokes leases."""
    revoke = pb.LeaseRevoke(lease_ids=action.lease_ids, reason=action.reason)
    return pb.CoordinatorMessage(lease_revoke=revoke)


def plan_message(action: SendPlan) -> pb.CoordinatorMessage:
    """Return the message with a peer's part of the relay plan."""
    part = action.part
    plan = pb.RelayPlan(
        plan_id=action.plan_id,
        neighbours=_neighbours(part.neighbours),
        stripes=[_stripe(one) for one in part.stripes],
        list_children=part.list_children,
        parents=part.parents,
        fallbacks=_neighbours(part.fallbacks),
        direct_copies=part.direct_copies,
    )
    return pb.CoordinatorMessage(relay_plan=plan)


def _stripe(one: StripeAssignment) -> pb.PlanStripe:
    return pb.PlanStripe(
        stripe=one.stripe,
        children=one.children,
        bytes_per_second=one.bytes_per_second,
        heirs=[pb.PlanHeir(child=child, heir=heir) for child, heir in one.heirs],
        adopted=one.adopted,
        guardian=max(0, one.guardian),
        relays=one.relays,
    )


def probe_message(action: SendProbe) -> pb.CoordinatorMessage:
    """Return the message that asks a peer to measure its uplink."""
    probe = pb.Probe(
        probe_id=action.probe_id,
        peer_id=action.to_peer,
        bytes_max=action.bytes_max,
        seconds_max=action.seconds_max,
    )
    return pb.CoordinatorMessage(probe=probe)


def activation_message(action: TellActivation) -> pb.CoordinatorMessage:
    """Return the message that switches the peer on or off, with the reason."""
    return pb.CoordinatorMessage(activation=pb.Activation(active=action.active, reason=action.reason))


def announcement_message(announcement: pb.VersionAnnouncement) -> pb.CoordinatorMessage:
    """Return the message with a signed version, exactly as the learner announced it."""
    return pb.CoordinatorMessage(announcement=announcement)


def _neighbours(neighbours: Iterable[Neighbour]) -> list[pb.PlanNeighbour]:
    return [
        pb.PlanNeighbour(peer_id=one.peer_id, role=one.role, address=one.address, we_dial=one.we_dial, lan=one.lan)
        for one in neighbours
    ]
