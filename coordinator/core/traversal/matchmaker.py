"""Have two members that cannot be dialled dial each other at the same moment.

The method is DCUtR's (libp2p specification "Direct Connection Upgrade through Relay"): both dial at a signal, in roles
that are fixed beforehand. Here the signal comes through the sessions that both have with the coordinator, so that no
relay is needed for it. Pure: times are the core's clock in seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note, SendToPeer
from coordinator.core.events.reach_events import PunchEnded, PunchRequested, ReachEvent
from coordinator.core.members.membership import Member
from coordinator.core.reach.failed_pairs import Pair, pair_of
from coordinator.core.reach.holes import IPV6, can_punch, can_punch_over_ipv4
from coordinator.core.traversal.component import ReachComponent
from coordinator.core.traversal.rate_limit import Turns
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

DEADLINE_S = 3.0
"""Seconds for which both ends dial. A hole opens within a few round trips or not at all (`python -m bench holes`)."""
_ANSWER_S = 5.0  # additional time until both ends have reported the outcome
_ASKED_AT_ONCE = 32  # punches that one member may request at once
_ASKED_EVERY_S = 0.5  # average period of one member's requests beyond that
_AT_ONCE_MAX = 16  # punches in progress at one member
_IN_PROGRESS_MAX = 4096  # punches in progress at all members
_NO_HOLE = "no hole can be punched between our routers"


@dataclass(slots=True)
class _Punch:
    asker: PeerId
    other: PeerId
    ends_at: float
    outcomes: dict[PeerId, bool]
    seconds: float = 0.0


class Matchmaker(ReachComponent):
    """Keeps the punches in progress, and counts how earlier ones ended."""

    takes = (PunchRequested, PunchEnded)

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._in_progress: dict[int, _Punch] = {}  # in order of their ends
        self._pairs: set[Pair] = set()  # pairs of the punches in progress
        self._busy: Counter[PeerId] = Counter()
        self._turns = Turns(at_once=_ASKED_AT_ONCE, every_s=_ASKED_EVERY_S)
        self._last_id = 0
        self.figures = state.reach.punches

    # ---------------------------------------------------------------- events

    def joined(self, member: Member, now: float) -> list[Action]:
        """End the punches of the member's earlier session."""
        return self.left(member.peer_id, now)

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """End the punches of a member that left: their outcome will not be reported."""
        if peer_id in self._busy:
            for punch_id in [key for key, one in self._in_progress.items() if peer_id in (one.asker, one.other)]:
                self._end(punch_id)
        return []

    def received(self, event: ReachEvent, now: float) -> list[Action]:
        """Handle a request for a punch, or the outcome of one."""
        if isinstance(event, PunchRequested):
            return self._requested(event, now)
        assert isinstance(event, PunchEnded)
        return self._ended(event, now)

    def tick(self, now: float) -> list[Action]:
        """Count punches as failed that were not reported as opened in time."""
        actions: list[Action] = []
        while self._in_progress:
            punch_id, punch = next(iter(self._in_progress.items()))
            if punch.ends_at + _ANSWER_S > now:
                break
            actions += self._settle(punch_id, opened=any(punch.outcomes.values()), now=now)
        if self._state.reach.failures.tick(now):
            self._state.reach.mark_changed()
        return actions

    # ---------------------------------------------------------------- decisions

    def _requested(self, event: PunchRequested, now: float) -> list[Action]:
        refusal = self._refusal(event, now)
        if refusal:
            self.figures.refused += 1
            nats_known = all(self._state.reach.of(peer_id).nat_reported for peer_id in (event.peer_id, event.to_peer))
            if refusal == _NO_HOLE and nats_known and self._share_lan(event.peer_id, event.to_peer):
                # The plan counted on their local network, which is tried first: that failed, and no hole can follow.
                self._state.reach.failures.failed(event.peer_id, event.to_peer, now)
                self._state.reach.mark_changed()
            return [SendToPeer(event.peer_id, _refused(event.to_peer, refusal))]
        self._last_id += 1
        self.figures.asked += 1
        self._busy.update((event.peer_id, event.to_peer))
        self._pairs.add(pair_of(event.peer_id, event.to_peer))
        self._in_progress[self._last_id] = _Punch(event.peer_id, event.to_peer, now + DEADLINE_S, {})
        return [
            SendToPeer(event.peer_id, self._order(event.peer_id, event.to_peer, asked=True)),
            SendToPeer(event.to_peer, self._order(event.to_peer, event.peer_id, asked=False)),
        ]

    def _refusal(self, event: PunchRequested, now: float) -> str:
        """Return why there is no punch, for people; empty if there is one."""
        state, one, other = self._state, event.peer_id, event.to_peer
        if state.members.get(other) is None or one == other:
            return "that peer is not connected"
        if state.members.reputation(one).kept_out or state.members.reputation(other).kept_out:
            return "one of the two is banned or quarantined"
        if not (state.reach.of(one).reported and state.reach.of(other).reported):
            return "one of the two has not reported its address since it joined"
        if not can_punch(state.reach.of(one).hole, state.reach.of(other).hole):
            return _NO_HOLE
        pause_s = state.reach.failures.pause_left_s(one, other, now)
        if pause_s:
            return f"the last punch failed: retry in {pause_s:.0f} s"
        if pair_of(one, other) in self._pairs:  # so that no member fills all places of another one by itself
            return "a punch of the two is in progress"
        if max(self._busy[one], self._busy[other]) >= _AT_ONCE_MAX or len(self._in_progress) >= _IN_PROGRESS_MAX:
            return "too many punches are in progress"
        return "" if self._turns.take(one, now) else "too many requests from this peer"

    def _share_lan(self, one: PeerId, other: PeerId) -> bool:
        """Whether plans treat them as neighbours in one local network; see RelayNode.shares_lan_with."""
        state = self._state
        sites = {member.site for member in map(state.members.get, (one, other)) if member is not None}
        addresses_known = all(state.reach.of(peer_id).local_address for peer_id in (one, other))
        return state.settings.lan_preferred and addresses_known and len(sites) == 1 and "" not in sites

    def _order(self, to: PeerId, other: PeerId, *, asked: bool) -> pb.CoordinatorMessage:
        """Return the order to punch over IPv4, IPv6 or both.

        The IPv4 address is empty if it cannot be known, as behind a symmetric router: then only the other end dials it.
        """
        member = self._state.members.get(other)
        assert member is not None
        own, theirs = self._state.reach.of(to), self._state.reach.of(other)
        punch = pb.Punch(
            punch_id=self._last_id,
            peer_id=other,
            role=member.role,
            address=theirs.punch_address if can_punch_over_ipv4(own.hole, theirs.hole) else "",
            address_ipv6=theirs.punch_address_ipv6 if own.hole & IPV6 else "",
            serves=to < other,
            asked=asked,
            deadline_s=DEADLINE_S,
        )
        return pb.CoordinatorMessage(punch=punch)

    def _ended(self, event: PunchEnded, now: float) -> list[Action]:
        punch = self._in_progress.get(event.punch_id)
        if punch is None or event.peer_id not in (punch.asker, punch.other):
            return []
        punch.outcomes[event.peer_id] = event.opened
        punch.seconds = max(punch.seconds, event.seconds)
        if event.peer_id == punch.asker:  # the asker dials on if it must, so its report decides
            return self._settle(event.punch_id, opened=event.opened, now=now)
        return []

    def _settle(self, punch_id: int, *, opened: bool, now: float) -> list[Action]:
        punch = self._end(punch_id)
        reach = self._state.reach
        if opened:
            self.figures.opened += 1
            self.figures.seconds_sum += punch.seconds
            if reach.failures.succeeded(punch.asker, punch.other):
                reach.mark_changed()
            return []
        self.figures.failed += 1
        reach.failures.failed(punch.asker, punch.other, now)
        reach.mark_changed()
        return [Note("punch_failed", punch.asker, f"no hole to {punch.other}")]

    def _end(self, punch_id: int) -> _Punch:
        punch = self._in_progress.pop(punch_id)
        self._pairs.discard(pair_of(punch.asker, punch.other))
        for peer_id in (punch.asker, punch.other):
            self._busy[peer_id] -= 1
            if not self._busy[peer_id]:
                del self._busy[peer_id]
        return punch


def _refused(other: PeerId, why: str) -> pb.CoordinatorMessage:
    return pb.CoordinatorMessage(punch=pb.Punch(peer_id=other, refused=why))
