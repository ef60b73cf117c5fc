"""Handle a peer's session: its start and end, its heartbeats, the versions that it holds, and accusations."""

from __future__ import annotations

from typing import Literal

from coordinator.core.decisions import evaluating
from coordinator.core.decisions.broadcasts import Broadcasts
from coordinator.core.decisions.episodes import begin_anew_if
from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import (
    Action,
    EndSession,
    LiftQuarantine,
    Note,
    Penalise,
    RecordQuarantine,
    RefuseSession,
    RevokeLeases,
    SendAnnouncement,
    SendToPeer,
)
from coordinator.core.events.audit_events import AuditRestored
from coordinator.core.events.cell_events import MembersConvicted
from coordinator.core.events.events import (
    HeartbeatReceived,
    PeerAccused,
    PeerJoined,
    PeerLeft,
    StepFinished,
    VersionHeld,
)
from coordinator.core.leases.episodes import Game
from coordinator.core.members.membership import Member
from coordinator.core.members.reputation_card import verdict_of
from coordinator.core.staleness.epochs import NEWEST_KEPT
from coordinator.core.traversal.traversal import Traversal
from rollcast.runtime.errors import Banned
from rollcast.wire.ids import PeerId, Version
from rollcast.wire.rollouts import authors_of


class Presence:
    """Keeps track of which members are connected, and which version each of them holds."""

    def __init__(self, state: CoreState, broadcasts: Broadcasts, traversal: Traversal) -> None:
        self._state = state
        self._broadcasts = broadcasts
        self._traversal = traversal

    def joined(self, event: PeerJoined, now: float) -> list[Action]:
        """Add a peer that opened a session; it keeps the leases that it held before."""
        if self._state.ended:
            return [self._state.dismiss(event.peer_id)]
        banned = self._state.members.banned_because(event.peer_id)
        if banned:
            return [refused(event.peer_id, banned)]
        actions: list[Action] = []
        if self._state.members.get(event.peer_id) is not None:
            actions += self._remove_member(event.peer_id, "left", "session replaced", now)
            actions.append(Note("session_replaced", event.peer_id, "the same identity opened a second session"))
        member = self._state.members.join(event, now)
        members = len(self._state.members)
        self._state.forecast.joined(members)
        self._state.traffic.joined(members)
        self._state.links.joined(members)
        self._state.dissemination.joined(members)
        self._state.book.reconnected(event.peer_id)
        evaluating.joined(self._state, event.peer_id, event.held_leases)
        actions += self._end_unheld(event) + self._revoke_forgotten(event)
        actions.append(Note("peer_joined", event.peer_id, f"{event.name} as {event.role}"))
        actions += self._appeal(event)
        suspended = self._state.audit.suspends(event.peer_id, event.invite) if event.role == "peer" else ""
        if suspended and self._state.members.quarantine(event.peer_id, suspended):
            actions.append(Penalise(event.peer_id, suspended, True))
        if event.role == "peer" and self._state.card_of(event.peer_id).state in ("watched", "quarantined"):
            actions.append(told(self._state, event.peer_id))
        actions += self._traversal.joined(member, now) + self._broadcasts.joined(member, now)
        # The newest few: a peer that missed some versions may follow their deltas.
        heard = -1 if event.heard_version is None else event.heard_version
        latest = [version for version in self._state.announced.latest(NEWEST_KEPT) if version > heard]
        actions += [SendAnnouncement((event.peer_id,), version) for version in latest]
        return actions + issue(self._state, now)

    def _appeal(self, event: PeerJoined) -> list[Action]:
        """Judge a peer anew that an audit convicted and that comes back with another engine or device.

        It begins on probation: everything that it sends is judged, and it may hold little work. What its own receipt
        or an operator's order did stays.
        """
        state, peer_id = self._state, event.peer_id
        record, quarantined = state.audit.record(peer_id), state.members.reputation(peer_id).quarantined
        if record is None or quarantined != record.convicted or not state.audit.appeal(peer_id, event.sampler):
            return []
        state.members.enable(peer_id, ["quarantined"])
        what = f"came back with {event.sampler} after {record.sampler or 'an unknown engine'} {record.convicted}"
        return [Note("appealed", peer_id, what), LiftQuarantine(peer_id), told(state, peer_id)]

    def _end_unheld(self, event: PeerJoined) -> list[Action]:
        """Close the attempts that a reconnecting peer reports as lost, so that other peers can begin them at once."""
        if event.held_leases is None:
            return []
        has = frozenset(event.held_leases)
        lost = [one for one in self._state.book.held_by(event.peer_id) if one.lease_id not in has]
        return self._state.close_attempts(lost, "peer_left", notify_peers=False)

    def _revoke_forgotten(self, event: PeerJoined) -> list[Action]:
        """Revoke what a reconnecting peer would finish in vain: leases of before a restart that nobody recorded."""
        forgotten = tuple(one for one in event.held_leases or () if self._state.book.is_forgotten(one))
        return [RevokeLeases(event.peer_id, forgotten, "coordinator_restarted")] if forgotten else []

    def left(self, event: PeerLeft, now: float) -> list[Action]:
        """Remove a peer whose session ended. Unless it sent Goodbye it keeps its leases, as it may reconnect."""
        if self._state.members.get(event.peer_id) is None:
            return []
        actions: list[Action] = []
        if event.finished:
            evaluating.left(self._state, event.peer_id, finished=True)
            held = self._state.book.held_by(event.peer_id)
            actions += self._state.close_attempts(held, "peer_left", notify_peers=False)
        return actions + self._end_membership(event.peer_id, "left", event.reason, now) + issue(self._state, now)

    def drop_silent(self, now: float) -> list[Action]:
        """End the sessions of members that sent nothing for too long."""
        actions: list[Action] = []
        for member in self._state.members.silent(now):
            silent_s = now - member.last_seen
            actions += self._end_membership(member.peer_id, "lost", f"silent for {silent_s:.1f} s", now)
            actions.append(EndSession(member.peer_id, "no heartbeat"))  # a machine that was suspended will reconnect
        return actions

    def dismissed(self, peer_id: PeerId, reason: str, now: float) -> list[Action]:
        """Remove a member that the operator dismissed; its leases are closed already."""
        return self._end_membership(peer_id, "left", reason, now)

    def _end_membership(self, peer_id: PeerId, how: Literal["left", "lost"], reason: str, now: float) -> list[Action]:
        """Remove a member whose session is over; it keeps its leases until their deadline, as it may reconnect."""
        self._state.book.left(peer_id, now + self._state.settings.reconnect_grace_s)
        evaluating.left(self._state, peer_id, finished=False)
        actions = self._remove_member(peer_id, how, reason, now)
        return [Note("peer_left", peer_id, reason), *actions, *self._broadcasts.left(peer_id, now)]

    def _remove_member(self, peer_id: PeerId, how: Literal["left", "lost"], reason: str, now: float) -> list[Action]:
        self._state.members.leave(peer_id, how, reason)
        self._state.dissemination.left(peer_id)
        return self._traversal.left(peer_id, now)

    def heartbeat(self, event: HeartbeatReceived, now: float) -> list[Action]:
        """Take over what a member reports about itself, and issue work if it may now have some."""
        member = self._state.members.seen(event.peer_id, now)
        if member is None:
            return []
        # Most heartbeats report what the one before did: then the member's roles stay as they are, and unless its
        # version changes, whether it may work.
        rests_as_before = member.rests_as(event.facts)
        could_work, roles_before = (True, None) if rests_as_before else (member.may_work, member.roles_in_plan)
        version_before, member.facts = member.version, event.completed(member.facts)
        if member.role == "peer":  # the origin receives from the learner, outside a broadcast
            self._state.traffic.observe(member.peer_id, event.facts)
        active = event.facts.active_version
        # Nothing follows from a version that the member is known to have generated with, unless an epoch orphaned it.
        is_known = active == member.version == member.reputation.oldest_own_version and not self._state.epochs.opened
        if active is not None and not is_known:
            self._active(member, active, now)
        if member.is_cell:
            member.concurrent_rollouts = event.facts.cell_slots
            self._state.members.changed([member.peer_id])
        if not member.receives:  # by its owner's limits or on standby: no broadcast waits for it
            self._state.dissemination.left(member.peer_id)
        actions = self._broadcasts.observe(member, now, before=roles_before)
        receives_again = roles_before is not None and member.receives and not roles_before[1]
        if receives_again:  # versions announced while it did not receive
            latest = self._state.announced.latest(NEWEST_KEPT)
            actions += [SendAnnouncement((member.peer_id,), version) for version in latest]
        if member.version == version_before and (rests_as_before or member.may_work == could_work):
            return actions
        self._state.members.changed([member.peer_id])
        return actions + issue(self._state, now)

    def version_held(self, event: VersionHeld, now: float) -> list[Action]:
        """Note that a member holds a version and will generate with it."""
        member = self._state.members.seen(event.peer_id, now)
        if member is None:
            return []
        state = self._state
        if not state.announced.is_published(event.epoch, event.version):
            if member.role == "origin":  # it holds a version before the learner may announce it
                return []
            if state.epochs.is_orphan(event.version):
                self._holds_none(member)
                return []
            return [Penalise(event.peer_id, f"claims version {event.version}, which was not announced", False)]
        self._holds(member, event.version, now)
        if member.role == "peer":
            self._state.dissemination.received(event.version, event.bytes_received)
        return issue(self._state, now)

    def _active(self, member: Member, version: Version, now: float) -> None:
        if self._state.epochs.is_orphan(version):
            self._holds_none(member)
        elif self._state.announced.may_contain(version):
            member.reputation.generated_with(version)
            self._holds(member, version, now)

    def _holds(self, member: Member, version: Version, now: float) -> None:
        if member.holds(version):
            self._state.members.changed([member.peer_id])
            if member.role == "peer":
                self._state.forecast.version_came(version, now)
        self._state.dissemination.held(member.peer_id, version, now)

    def _holds_none(self, member: Member) -> None:
        """Give the member no work until it has a version of the current epoch: its rollouts would not count."""
        member.version = None
        self._state.members.changed([member.peer_id])

    def accused(self, event: PeerAccused, now: float) -> list[Action]:
        """Handle a peer's report that another one sent it a wrong chunk.

        Only a receipt, in which the other one states so itself, costs it its reputation. A report without one may be a
        lie of either: then only the link between the two is given up, longer each time, and plans go around it.
        """
        accuser = self._state.members.seen(event.accuser, now)
        if accuser is None or event.accuser == event.culprit:
            return []
        if event.receipt:
            return self._convict(event, now)
        doubt = self._doubt(event, accuser)
        if doubt:
            return [Note("accusation_ignored", event.culprit, f"{event.accuser}: {doubt}")]
        accuser.reputation.gave_up.add(event.culprit)
        self._state.reach.given_up.failed(event.accuser, event.culprit, now)
        return [Note("link_given_up", event.culprit, f"{event.accuser}: {event.reason}"), *self._broadcasts.replan(now)]

    def _convict(self, event: PeerAccused, now: float) -> list[Action]:
        """Quarantine an identity that stated in a receipt that it sent a wrong chunk.

        The origin is ours and is never quarantined: without it no peer could receive anything.
        """
        reason = f"sent a corrupt chunk: version {event.version}, index {event.chunk_index}, by its own receipt"
        actions: list[Action] = [Note("accusation", event.culprit, f"{event.accuser}: {event.reason}")]
        if self._state.members.reputation(event.culprit).is_origin:
            return [*actions, Penalise(event.culprit, reason, False)]
        if not self._state.members.quarantine(event.culprit, reason):
            return actions
        actions += [Penalise(event.culprit, reason, True), RecordQuarantine(event.culprit, reason, event.receipt)]
        if self._state.members.get(event.culprit) is not None:
            actions.append(told(self._state, event.culprit))
        return actions + self._take_work_from(event.culprit, now)

    def audited(self, event: StepFinished, now: float) -> list[Action]:
        """Add the findings of a step, and quarantine the identities that they convict.

        What a convicted identity has uploaded and no batch holds yet is dropped: it comes from the same sampler.
        """
        state, actions = self._state, list[Action]()

        def invite_of(peer_id: PeerId) -> str:  # of a peer that has left, too
            return state.members.reputation(peer_id).invite

        verdicts = state.audit.add(event.step, event.audits, invite_of)
        reasons = {peer_id: state.audit.convicted()[peer_id] for peer_id in verdicts.convicted}
        for invite in verdicts.suspended:
            actions.append(Note("invite_suspended", invite, state.audit.suspended(invite)))
            same = [one for one in state.members if one.role == "peer" and one.invite == invite]
            reasons = {one.peer_id: why for one in same if (why := state.audit.suspends(one.peer_id, invite))} | reasons
        for peer_id, reason in reasons.items():
            if state.members.quarantine(peer_id, reason):
                actions.append(Penalise(peer_id, reason, True))
                actions += _drop_uploads(state, peer_id)
                actions += self._take_work_from(peer_id, now)
        suspects = dict.fromkeys([one.peer_id for one in event.audits if one.beyond] + list(reasons))
        for one in suspects:
            if state.members.get(one) is not None:
                actions.append(told(state, one))
            elif (cell := state.members.cell_of(one)) is not None and state.members.get(cell) is not None:
                actions.append(state.report_to_cell(cell, one))
        return actions

    def convicted_by_head(self, event: MembersConvicted, now: float) -> list[Action]:
        """Quarantine members of this cell whose tokens the head's learner found wrong, and drop what they uploaded."""
        actions: list[Action] = []
        for peer_id, reason in event.reasons.items():
            if self._state.members.quarantine(peer_id, reason):
                actions += [Penalise(peer_id, reason, True), *_drop_uploads(self._state, peer_id)]
                actions += self._take_work_from(peer_id, now)
        return actions

    def audit_restored(self, event: AuditRestored) -> None:
        """Take over the findings of an earlier coordinator, before any peer has joined."""
        self._state.audit.restore(event)
        for peer_id, reason in self._state.audit.convicted().items():
            self._state.members.quarantine(peer_id, reason)

    def _take_work_from(self, peer_id: PeerId, now: float) -> list[Action]:
        """Take all work from an identity that was quarantined, and plan the relays without it."""
        state = self._state
        state.dissemination.left(peer_id)
        state.partials.discard(peer_id)
        state.unseen.discard(peer_id)
        here = state.members.get(peer_id) is not None
        actions = state.close_attempts(state.book.held_by(peer_id), "revoked", notify_peers=here)
        actions += evaluating.dismissed(state, peer_id)
        return actions + self._broadcasts.replan(now) + issue(state, now)

    def _doubt(self, event: PeerAccused, accuser: Member) -> str:
        """Return why a report without a receipt is not followed; empty if it is."""
        culprit = self._state.members.get(event.culprit)
        if culprit is None or culprit.role != "peer":
            return "the other end is no connected peer"
        chunk_count = self._state.announced.chunk_count(event.version)
        if chunk_count is None:
            return f"version {event.version} was not announced recently"
        if event.chunk_index >= chunk_count:
            return f"version {event.version} has no chunk {event.chunk_index}"
        if not self._state.relay.may_receive_from(event.accuser, event.culprit):
            return "the relay plan did not assign it that source"
        if accuser.reputation.quarantined:
            return "the accuser is quarantined"
        accuser.reputation.gave_up &= self._state.reach.given_up.of(event.accuser)
        peers = sum(one.role == "peer" for one in self._state.members)
        if 2 * len(accuser.reputation.gave_up | {event.culprit}) > peers:
            return "it gave up half of the peers already"  # else the origin alone would have to send it everything
        return ""


def _drop_uploads(state: CoreState, peer_id: PeerId) -> list[Action]:
    """Drop what an identity uploaded and no batch holds yet; the slots are issued again.

    What others continued from its tokens goes with it, stored or still being generated.
    """

    def is_over(game: Game) -> bool:
        turns = (turn for episode in game.players for turn in episode.turns)
        return any(peer_id in authors_of(turn.generated) for turn in turns)

    actions: list[Action] = []
    for group in list(state.book):
        for index, slot in enumerate(group.slots):
            if slot.filling is not None and peer_id in slot.filling.authors:
                actions += state.drop_rollout(group, index, "audit_failed")
            continued = [one for one in slot.live if one.peer_id != peer_id and peer_id in authors_of(one.prefix or ())]
            actions += state.close_attempts(continued, "audit_failed", notify_peers=True)
        actions += begin_anew_if(state, group, "audit_failed", is_over)
    return actions


def told(state: CoreState, peer_id: PeerId) -> SendToPeer:
    """Return the message with which a peer's owner learns what the run thinks of its work, and why."""
    return SendToPeer(peer_id, verdict_of(state.card_of(peer_id)))


def refused(peer_id: PeerId, reason: str) -> RefuseSession:
    """Return the refusal that is sent to a banned peer."""
    error = Banned.because(reason)
    return RefuseSession(peer_id, error.code, f"{error.what}: {error.cause}", error.fix)
