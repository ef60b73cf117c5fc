"""When to plan again who relays to whom, with which rates, and when to measure them."""

from __future__ import annotations

from coordinator.actions import Action
from coordinator.membership import Member
from coordinator.probing import ProbeCandidate, Probing
from coordinator.relay_model import RelayNode
from coordinator.state import CoreState
from rollcast.wire.ids import PeerId

REPLAN_AT_ONCE_MAX = 64  # members; above it joins and leaves are planned together a little later (thundering herds)
MEMBERS_PLANNED_A_SECOND = 2000  # so that planning takes a small share of the coordinator's time
SLOWED_AFTER_S = 2.0  # since the last plan: a relay that lost half of its uplink
MOVED_AFTER_S = 30.0  # since the last plan: a rate that was not known, or is another one now


class Relaying:
    """The relay plan's glue to membership and heartbeats. Times are the core's clock in seconds."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._probing = Probing(state.settings.probes)
        self._planned_at = float("-inf")
        self._due_at = float("inf")

    def joined(self, member: Member, now: float) -> list[Action]:
        """A session was opened: tell its peer its part, whatever it was told before."""
        self._state.relay.forget(member.peer_id)
        return self.changed(now)

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """A member is gone."""
        self._probing.left(peer_id)
        return self.changed(now)

    def changed(self, now: float) -> list[Action]:
        """Who is here, or may relay, changed: plan again, soon if there are many members."""
        members = len(self._state.members)
        if members <= REPLAN_AT_ONCE_MAX:
            return self.replan(now)
        self._due_by(max(now, self._planned_at + members / MEMBERS_PLANNED_A_SECOND))
        return []

    def observe(self, member: Member, now: float, *, could_relay: bool) -> list[Action]:
        """Take a heartbeat's measurements in; ``could_relay`` before it."""
        assert member.facts is not None
        self._state.links.observe(member.peer_id, member.facts, now)
        if member.may_relay != could_relay:
            return self.changed(now)
        match self._state.relay.drift(self._node(member, now)):
            case "slowed":
                self._due_by(self._planned_at + SLOWED_AFTER_S)
            case "moved":  # in a mesh a new plan moves next to nothing
                mesh = self._state.relay.mode == "mesh"
                self._due_by(self._planned_at + (SLOWED_AFTER_S if mesh else MOVED_AFTER_S))
            case "none":
                pass
        return []

    def tick(self, now: float) -> list[Action]:
        """Plan again if it is due; otherwise let a peer measure its uplink if that is needed."""
        if now >= self._due_at:
            return self.replan(now)
        return self._probe(now)

    def replan(self, now: float) -> list[Action]:
        """Plan again at once."""
        self._due_at = float("inf")
        if self._state.ended:  # everybody is leaving: nothing is relayed any more
            return []
        self._planned_at = now
        self._state.links.settle()
        return list(self._state.relay.replan([self._node(member, now) for member in self._state.members]))

    def _due_by(self, at: float) -> None:
        self._due_at = min(self._due_at, at)

    def _node(self, member: Member, now: float) -> RelayNode:
        cap = member.upload_cap_bytes_per_second
        link = self._state.links.estimate(member.peer_id, now, upload_cap_bytes_per_second=cap)
        return RelayNode(
            peer_id=member.peer_id,
            role=member.role,
            address=member.address,
            may_relay=member.may_relay,
            uplink_bytes_per_second=link.uplink_bytes_per_second,
            uplink_confidence=link.uplink_confidence,
            downlink_bytes_per_second=link.downlink_bytes_per_second,
            metered=member.metered,
            region=member.region,
            site=member.site if self._state.settings.lan_preferred else "",
            rtt_s=link.rtt_s,
        )

    # ---------------------------------------------------------------- probes

    def _probe(self, now: float) -> list[Action]:
        """In a mesh relays find their shares by themselves: only trees need to know rates beforehand."""
        state = self._state
        if state.ended or state.relay.mode != "trees" or not self._probing.is_time(len(state.members), now):
            return []
        idle = {member.peer_id: member for member in state.members if self._is_idle(member)}
        candidates = [self._candidate(member, idle, now) for member in idle.values()]
        return list(self._probing.next(candidates, now))

    def _is_idle(self, member: Member) -> bool:
        """It holds the newest version and nothing is on its way to it, nor from it to those below it."""
        return self._has_newest(member) and all(
            child is None or child.standing.quarantined or self._has_newest(child)
            for child in map(self._state.members.get, self._state.relay.children_of(member.peer_id))
        )

    def _has_newest(self, member: Member) -> bool:
        if member.facts is None or member.facts.receiving_version is not None:
            return False
        return member.role == "origin" or member.version == self._state.newest_version

    def _candidate(self, member: Member, idle: dict[PeerId, Member], now: float) -> ProbeCandidate:
        link = self._state.links.estimate(member.peer_id, now)
        wanted = member.may_relay and not member.metered
        part = self._state.relay.part_of(member.peer_id) if wanted else None
        targets = [] if part is None else [one.peer_id for one in part.neighbours if not one.lan]
        return ProbeCandidate(
            peer_id=member.peer_id,
            wanted=wanted,
            confidence=link.uplink_confidence,
            done_probe_id=self._state.links.probe_id(member.peer_id),
            targets=tuple(one for one in targets if one in idle and not idle[one].metered),
        )
