"""Decide when to plan the relays again, with which rates, and when to measure uplinks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coordinator.core.broadcast.nodes import RelayNode
from coordinator.core.broadcast.planner import Drift
from coordinator.core.broadcast.probing import Probing
from coordinator.core.broadcast.problem import RelayProblem
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, PlanRelays
from coordinator.core.events.events import RelaysPlanned
from coordinator.core.members.membership import Member
from rollcast.wire.address_scope import scope_of
from rollcast.wire.ids import PeerId

REPLAN_AT_ONCE_MAX = 64  # members; with more, joins and leaves are planned together a little later (thundering herds)
MEMBERS_PLANNED_A_SECOND = 2000  # so that planning takes a small share of the coordinator's time
PLANNED_IN_LINE_MAX = 500  # members; a larger plan takes longer than other events may wait
READ_A_TURN = 1000  # members whose rates are read for a plan, or for a probe, in one tick: 10 to 20 ms for a plan
IN_LINE_AGAIN_SHARE = 0.75  # of that number, below which a shrinking fleet is planned in line again: no flapping
MADE_WITHIN_S = 60.0  # for a plan beside the loop; after that another one is asked for
SLOWED_AFTER_S = 2.0  # since the last plan: a relay that lost half of its uplink
REACH_AFTER_S = 1.0  # since the last plan: a change of reachability, which is reported peer by peer after a start
MOVED_AFTER_S = 30.0  # since the last plan: a rate that was unknown, or has changed
# The same while a version is under way: chunks that were on their way down the old trees have to be requested.
MOVED_MEANWHILE_AFTER_S = 300.0
_OWN_LINKS = ("direct", "punched")  # kinds of links that cross no third machine


class Broadcasts:
    """Connects the relay plan to membership and heartbeats. Times are the core's clock in seconds.

    Plans of more than PLANNED_IN_LINE_MAX members are made beside the event loop: PlanRelays asks for one, and
    RelaysPlanned reports that it is made. One is made at a time. What changes meanwhile is planned after it.
    """

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._probing = Probing(state.settings.probes)
        self._planned_at = float("-inf")
        self._due_at = float("inf")
        self._site_links: dict[PeerId, frozenset[PeerId]] = {}  # members of its site to which each member is linked
        self._asked = 0  # plans that were made beside the loop
        self._is_large = False  # whether the newest plan was asked for beside the loop
        self._unread: list[Member] = []  # members that the next large plan still has to read
        self._nodes: list[RelayNode] = []  # those that it has read
        self._probed_from = 0  # place of the first member that the next probe is chosen among
        self.problem: RelayProblem | None = None
        """The problem that is being solved beside the loop; None if none is."""

    def joined(self, member: Member, now: float) -> list[Action]:
        """Plan with a peer that opened a session, and send it its assignment even if that is the same as before."""
        self._state.relay.discard(member.peer_id)
        return self.changed(now)

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """Plan without a member that left."""
        self._probing.left(peer_id)
        for known in self._site_links.pop(peer_id, ()):
            if known in self._site_links:
                self._site_links[known] -= {peer_id}
        return self.changed(now)

    def changed(self, now: float) -> list[Action]:
        """Plan again after members or relays changed: at once, or a little later if there are many members."""
        members = len(self._state.members)
        if members <= REPLAN_AT_ONCE_MAX:
            return self.replan(now)
        self._due_by(max(now, self._planned_at + members / MEMBERS_PLANNED_A_SECOND))
        return []

    def observe(self, member: Member, now: float, *, before: tuple[bool, bool] | None) -> list[Action]:
        """Take over a heartbeat's measurements.

        Args:
            before: whether the member relayed and received before it; None if that is as it was.
        """
        assert member.facts is not None
        self._state.links.observe(member.peer_id, member.facts, now)
        if before is not None and member.roles_in_plan != before:
            return self.changed(now)
        if member.site:
            self._observe_site(member, now)
        cap = member.upload_cap_bytes_per_second
        uplink, confidence = self._state.links.uplink(member.peer_id, now, upload_cap_bytes_per_second=cap)
        drift = self._state.relay.drift(member.peer_id, uplink, confidence)
        if drift != "none":  # in a mesh a new plan changes almost nothing
            self._due_by(self._planned_at + self._patience_s(drift))
        return []

    def _patience_s(self, drift: Drift) -> float:
        """Return the seconds from one plan to the next one that takes a drift of rates into account."""
        if drift == "slowed" or self._state.relay.mode == "mesh":
            return SLOWED_AFTER_S
        return MOVED_MEANWHILE_AFTER_S if drift == "moved" and self._state.dissemination.running else MOVED_AFTER_S

    def _observe_site(self, member: Member, now: float) -> None:
        """Note to which members of its site a member has been linked, and plan again soon if there are more.

        Links that ended still count, because a plan with sites needs fewer of them.
        """
        facts, members = member.facts, self._state.members
        if facts is None or not self._state.settings.lan_preferred:
            return
        direct = (link.peer_id for link in facts.links if link.transport in _OWN_LINKS)
        linked = frozenset(one.peer_id for one in map(members.get, direct) if one and one.site == member.site)
        known = self._site_links.get(member.peer_id, frozenset())
        if not linked <= known:
            self._site_links[member.peer_id] = known | linked
            for other in linked - known:
                self._site_links[other] = self._site_links.get(other, frozenset()) | {member.peer_id}
            self.reachability_changed(now)

    def reachability_changed(self, now: float) -> None:
        """Plan again soon, after reachability between members changed."""
        pause_s = max(REACH_AFTER_S, len(self._state.members) / MEMBERS_PLANNED_A_SECOND)
        self._due_by(max(now, self._planned_at + pause_s))

    def tick(self, now: float) -> list[Action]:
        """Plan again if that is due; otherwise have a peer measure its uplink if that is needed."""
        if self._state.relay.has_unsent and not self._state.ended:
            return list(self._state.relay.hand_over(self._receivers()))
        if self._unread:
            return self._read_on(now)
        if self._state.reach.given_up.tick(now) or now >= self._due_at:
            return self.replan(now)
        return self._probe(now)

    def replan(self, now: float) -> list[Action]:
        """Plan again at once."""
        self._due_at = float("inf")
        if self._state.ended:  # every member is leaving, and nothing is relayed any more
            return []
        is_made = (self.problem is not None or bool(self._unread)) and now - self._planned_at < MADE_WITHIN_S
        if is_made and len(self._state.members) > PLANNED_IN_LINE_MAX * IN_LINE_AGAIN_SHARE:
            self._due_at = now  # after the one that is being made; until then every tick asks again
            return []
        members = [member for member in self._state.members if member.receives]
        self._is_large = len(members) > PLANNED_IN_LINE_MAX * (IN_LINE_AGAIN_SHARE if self._is_large else 1.0)
        self._planned_at = now
        self._state.links.settle()
        self.problem, self._unread, self._nodes = None, [], []
        if not self._is_large:
            return list(self._state.relay.replan([self._node(member, now) for member in members]))
        self._unread = members[::-1]
        return self._read_on(now)

    def _read_on(self, now: float) -> list[Action]:
        """Read the next members' rates for a large plan, and ask for the plan once all were read."""
        for _ in range(min(READ_A_TURN, len(self._unread))):
            member = self._unread.pop()
            if self._state.members.get(member.peer_id) is member:
                self._nodes.append(self._node(member, now))
        if self._unread or self._state.ended:
            return []
        self.problem, self._nodes = self._state.relay.problem(self._nodes, beside=True), []
        if self.problem is None:
            return []
        self._asked += 1
        return [PlanRelays(self._asked)]

    def planned(self, event: RelaysPlanned) -> list[Action]:
        """Put a plan that was made beside the loop into force, unless another one has overtaken it."""
        problem = self.problem
        if problem is None or event.number != self._asked or self._state.ended:
            return []
        self.problem = None
        if event.afresh:
            problem.begin_afresh()
        return list(self._state.relay.take(problem, self._receivers()))

    def _receivers(self) -> set[PeerId]:
        return {member.peer_id for member in self._state.members if member.receives}

    def _due_by(self, at: float) -> None:
        self._due_at = min(self._due_at, at)

    def _node(self, member: Member, now: float) -> RelayNode:
        cap = member.upload_cap_bytes_per_second
        link = self._state.links.estimate(member.peer_id, now, upload_cap_bytes_per_second=cap)
        reach = self._state.reach.of(member.peer_id)
        return RelayNode(
            peer_id=member.peer_id,
            role=member.role,
            address=reach.address,
            may_relay=member.may_relay,
            uplink_bytes_per_second=link.uplink_bytes_per_second,
            uplink_confidence=link.uplink_confidence,
            downlink_bytes_per_second=link.downlink_bytes_per_second,
            metered=member.metered,
            region=member.region,
            site=member.site if self._state.settings.lan_preferred else "",
            rtt_s=link.rtt_s,
            hole=reach.hole,
            avoid=self._state.reach.failures.of(member.peer_id),
            circuits=reach.circuits,
            local_address=reach.local_address,
            scope=reach.scope,
            home=scope_of(reach.host),
            given_up=self._state.reach.given_up.of(member.peer_id),
            site_links=self._site_links.get(member.peer_id, frozenset()),
        )

    # ---------------------------------------------------------------- probes

    def _probe(self, now: float) -> list[Action]:
        """Have peers measure uplinks. Only trees need rates in advance: in a mesh relays find their shares."""
        state = self._state
        if state.ended or state.relay.mode != "trees" or not self._probing.is_time(len(state.members), now):
            return []
        for peer_id in self._probing.running:
            if self._is_idle(peer_id):
                self._probing.reported(peer_id, state.links.probe_id(peer_id))
        uplinks = [
            (member.peer_id, state.links.uplink(member.peer_id, now)[1])
            for member in self._next_to_probe()
            if not member.metered and member.may_relay
        ]
        return list(self._probing.next(uplinks, now, is_idle=self._is_idle, targets_of=self._targets_of))

    def _next_to_probe(self) -> Iterator[Member]:
        """Return the members that the next probe is chosen among: all, or of a large fleet the next READ_A_TURN."""
        first = self._probed_from if self._probed_from < len(self._state.members) else 0
        self._probed_from = first + READ_A_TURN
        return islice(self._state.members, first, self._probed_from)

    def _is_idle(self, peer_id: PeerId) -> bool:
        """Whether the peer and its children hold the newest version, so that nothing is being sent to or by it."""
        members = self._state.members
        member = members.get(peer_id)
        if member is None or not self._has_newest(member):
            return False
        children = map(members.get, self._state.relay.children_of(peer_id))
        return all(one is None or one.reputation.quarantined or self._has_newest(one) for one in children)

    def _has_newest(self, member: Member) -> bool:
        if member.facts is None or member.facts.receiving_version is not None:
            return False
        return member.role == "origin" or member.version == self._state.newest_version

    def _targets_of(self, peer_id: PeerId) -> Iterator[PeerId]:
        """Yield its neighbours outside its local network whose traffic is not metered."""
        part = self._state.relay.assignment_of(peer_id)
        for neighbour in () if part is None else part.neighbours:
            member = self._state.members.get(neighbour.peer_id)
            if not neighbour.lan and member is not None and not member.metered:
                yield neighbour.peer_id
