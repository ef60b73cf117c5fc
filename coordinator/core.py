"""The coordinator's decisions: events in, actions out. No clock, no I/O, no randomness of its own.

Each concern is a part with its own module: membership, leases, staleness, batches, accounting, relay plan, and so on;
state.py holds them together, and this module says which of them an event concerns, in which order.
"""

from __future__ import annotations

from typing import Literal, assert_never

from coordinator import epochs, forming, partials, starting
from coordinator.actions import (
    Action,
    EndSession,
    Note,
    Penalise,
    SendAnnouncement,
    StopPeer,
)
from coordinator.announced import NEWEST_KEPT
from coordinator.broadcast_status import BroadcastStatus, build_broadcast_status
from coordinator.events import (
    BatchRecorded,
    BatchRequested,
    EpochRecorded,
    EpochRequested,
    Event,
    HeartbeatReceived,
    LearnerCalled,
    LearnerStatusChanged,
    LeasesReturned,
    MalformedRollout,
    PartialReceived,
    PeerAccused,
    PeerJoined,
    PeerLeft,
    PromptsSupplied,
    RolloutReceived,
    RolloutScored,
    RolloutStored,
    RunEnded,
    Started,
    StepFinished,
    Tick,
    VersionAnnounced,
    VersionHeld,
    WorkRequested,
)
from coordinator.intake import Intake
from coordinator.issuing import issue
from coordinator.membership import Member
from coordinator.patience import Patience
from coordinator.relaying import Relaying
from coordinator.settings import CoreSettings
from coordinator.staleness import oldest_useful_version
from coordinator.state import CoreState, Restored
from coordinator.status import Status, Waiting, WaitingWatch, build_status
from rollcast.wire.ids import Epoch, PeerId, Version

__all__ = ["CoordinatorCore", "CoreSettings", "Restored", "Status", "Waiting"]


class CoordinatorCore:
    """Who is here, who does what, which rollouts count.

    ``now`` is any monotonic clock in seconds, the same for every call. Our own bugs raise ValueError or KeyError;
    what others do wrong becomes an action.
    """

    def __init__(self, settings: CoreSettings, restored: Restored | None = None) -> None:
        self.settings = settings
        self._state = CoreState(settings, restored)
        self._intake = Intake(self._state, last_rollout=0 if restored is None else restored.last_rollout)
        self._waiting = WaitingWatch(self._state)
        self._started_at: float | None = None
        self._elapsed_before_s = 0.0 if restored is None else restored.elapsed_s
        self._patience = Patience(self._state)
        self._relaying = Relaying(self._state)

    # ---------------------------------------------------------------- questions of the shell

    @property
    def epoch(self) -> Epoch:
        return self._state.epoch

    @property
    def newest_version(self) -> Version | None:
        """The newest announced version."""
        return self._state.newest_version

    @property
    def recorded_batches(self) -> int:
        """Batches of steps below this one are recorded."""
        return self._state.batches.recorded

    @property
    def origin(self) -> Member | None:
        """The origin that the learner pushes to; None until one has joined."""
        return self._state.members.origin

    def waiting(self, now: float) -> Waiting:
        """What the run waits for."""
        return self._waiting.describe(now, self._patience.no_peer_since)

    def status(self, now: float) -> Status:
        """Everything that the screens show."""
        return build_status(self._state, self.waiting(now), now=now, elapsed_s=self.elapsed_s(now))

    def broadcast(self, now: float) -> BroadcastStatus:
        """How the newest version spreads."""
        return build_broadcast_status(self._state, now=now)

    def elapsed_s(self, now: float) -> float:
        """How long coordinators have run on this run, those before us included, in seconds."""
        return self._elapsed_before_s + (0.0 if self._started_at is None else now - self._started_at)

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: one is broken; names it.
        """
        self._state.validate()
        self._intake.validate()

    # ---------------------------------------------------------------- events

    def handle(self, event: Event, now: float) -> list[Action]:
        """What the shell must do about this event, in this order."""
        if self._started_at is None:
            self._started_at = now
        actions = self._dispatch(event, now)
        self._patience.observe(now)
        self._waiting.observe(now)
        if self.settings.validate_every_event:
            self.validate()
        return actions

    def _dispatch(self, event: Event, now: float) -> list[Action]:
        match event:
            case Started():
                return starting.started(self._state, now)
            case PeerJoined():
                return self._peer_joined(event, now)
            case PeerLeft():
                return self._peer_left(event, now)
            case HeartbeatReceived():
                return self._heartbeat(event, now)
            case WorkRequested():
                return self._work_requested(event, now)
            case VersionHeld():
                return self._version_held(event, now)
            case LeasesReturned():
                return self._leases_returned(event, now)
            case PeerAccused():
                return self._peer_accused(event, now)
            case PromptsSupplied():
                self._state.prompts.supplied(event.prompts)
                return issue(self._state, now)
            case RolloutReceived():
                self._seen(event.peer_id, now)
                return self._intake.received(event) + issue(self._state, now)
            case MalformedRollout():
                self._seen(event.peer_id, now)
                return self._intake.malformed(event) + issue(self._state, now)
            case PartialReceived():
                self._seen(event.peer_id, now)
                return partials.received(self._state, event, now)
            case RolloutStored():
                return self._intake.stored(event)
            case RolloutScored():
                return self._intake.scored(event) + self._form_and_issue(now)
            case BatchRequested():
                return forming.batch_requested(self._state, event) + issue(self._state, now)
            case BatchRecorded():
                return forming.batch_recorded(self._state, event) + issue(self._state, now)
            case VersionAnnounced():
                return self._version_announced(event, now)
            case EpochRequested():
                return epochs.requested(self._state, event)
            case EpochRecorded():
                return epochs.recorded(self._state, event)
            case StepFinished():
                self._state.progress.step_finished(event.step, event.values)
                return []
            case LearnerStatusChanged():
                self._state.progress.status_changed(event.phase, event.detail, event.values)
                return []
            case LearnerCalled():
                self._patience.learner_called(now)
                return []
            case RunEnded():
                return self._run_ended(event)
            case Tick():
                return self._tick(now)
            case _:
                assert_never(event)

    # ---------------------------------------------------------------- membership

    def _peer_joined(self, event: PeerJoined, now: float) -> list[Action]:
        if self._state.ended:
            return [self._dismiss(event.peer_id)]
        actions: list[Action] = []
        if self._state.members.get(event.peer_id) is not None:
            self._remove_member(event.peer_id, "left", "session replaced")
            actions.append(Note("session_replaced", event.peer_id, "the same identity opened a second session"))
        member = self._state.members.join(event, now)
        actions.append(Note("peer_joined", event.peer_id, f"{event.name} as {event.role}"))
        actions += self._relaying.joined(member, now)
        # The last few: who was away for some versions may follow their deltas.
        latest = self._state.announced.latest(NEWEST_KEPT)
        actions += [SendAnnouncement(event.peer_id, version) for version in latest]
        return actions + issue(self._state, now)

    def _peer_left(self, event: PeerLeft, now: float) -> list[Action]:
        if self._state.members.get(event.peer_id) is None:
            return []
        actions: list[Action] = []
        if event.finished:
            held = self._state.book.held_by(event.peer_id)
            actions += self._state.close_attempts(held, "peer_left", tell_peers=False)
        return actions + self._gone(event.peer_id, "left", event.reason, now) + issue(self._state, now)

    def _gone(self, peer_id: PeerId, how: Literal["left", "lost"], reason: str, now: float) -> list[Action]:
        """Its session is over; what it works at stays its own until the deadline, in case that it comes back."""
        self._remove_member(peer_id, how, reason)
        return [Note("peer_left", peer_id, reason), *self._relaying.left(peer_id, now)]

    def _remove_member(self, peer_id: PeerId, how: Literal["left", "lost"], reason: str) -> None:
        self._state.members.leave(peer_id, how, reason)
        self._state.dissemination.left(peer_id)

    def _seen(self, peer_id: PeerId, now: float) -> Member | None:
        """The member that sent something just now."""
        member = self._state.members.get(peer_id)
        if member is not None:
            member.last_seen = now
        return member

    def _heartbeat(self, event: HeartbeatReceived, now: float) -> list[Action]:
        member = self._seen(event.peer_id, now)
        if member is None:
            return []
        could_work, could_relay = member.may_work, member.may_relay
        version_before = member.version
        member.facts = event.facts
        if member.role == "peer":  # the origin receives from the learner: that is no part of a broadcast
            self._state.traffic.observe(member.peer_id, event.facts)
        active = event.facts.active_version
        if active is not None and self._is_published(active):
            self._holds(member, active, now)
        actions = self._relaying.observe(member, now, could_relay=could_relay)
        changed = member.version != version_before or member.may_work != could_work
        return actions + issue(self._state, now) if changed else actions

    def _version_held(self, event: VersionHeld, now: float) -> list[Action]:
        member = self._seen(event.peer_id, now)
        if member is None:
            return []
        if event.epoch != self._state.epoch or not self._is_published(event.version):
            if member.role == "origin":  # it holds a version before the learner may announce it
                return []
            return [Penalise(event.peer_id, f"claims version {event.version}, which was not announced", False)]
        self._holds(member, event.version, now)
        if member.role == "peer":
            self._state.dissemination.received(event.version, event.bytes_received)
        return issue(self._state, now)

    def _is_published(self, version: Version) -> bool:
        return self._state.announced.may_contain(version)

    def _holds(self, member: Member, version: Version, now: float) -> None:
        member.holds(version)
        self._state.dissemination.held(member.peer_id, version, now)

    def _peer_accused(self, event: PeerAccused, now: float) -> list[Action]:
        accuser = self._seen(event.accuser, now)
        culprit = self._state.members.get(event.culprit)
        if accuser is None or culprit is None or accuser is culprit:
            return []
        doubt = self._doubt(event, accuser)
        if doubt:
            return [Note("accusation_ignored", event.culprit, f"{event.accuser}: {doubt}")]
        what = f"sent a corrupt chunk: version {event.version}, index {event.chunk_index}"
        quarantined = self._state.members.accuse(culprit, event.accuser, (event.version, event.chunk_index), now)
        actions: list[Action] = [
            Note("accusation", event.culprit, f"{event.accuser}: {event.reason}"),
            Penalise(event.culprit, culprit.standing.quarantined if quarantined else what, quarantined),
        ]
        if not quarantined:
            return actions + self._relaying.replan(now)
        self._state.dissemination.left(event.culprit)
        actions += self._state.close_attempts(self._state.book.held_by(event.culprit), "revoked", tell_peers=True)
        return actions + self._relaying.replan(now) + issue(self._state, now)

    def _doubt(self, event: PeerAccused, accuser: Member) -> str:
        """Why this accusation cannot be true or is not to be trusted, or empty."""
        chunk_count = self._state.announced.chunk_count(event.version)
        if chunk_count is None:
            return f"version {event.version} is not among those announced lately"
        if event.chunk_index >= chunk_count:
            return f"version {event.version} has no chunk {event.chunk_index}"
        if not self._state.relay.may_receive_from(event.accuser, event.culprit):
            return "the plan never let it receive from there"
        return "it is quarantined itself" if accuser.standing.quarantined else ""

    # ---------------------------------------------------------------- work

    def _work_requested(self, event: WorkRequested, now: float) -> list[Action]:
        member = self._seen(event.peer_id, now)
        if member is None:
            return []
        self._state.members.asks(member, event.free_slots)
        return issue(self._state, now)

    def _leases_returned(self, event: LeasesReturned, now: float) -> list[Action]:
        member = self._seen(event.peer_id, now)
        if member is None:
            return []
        self._state.members.asks(member, 0)  # until it asks again: it just said that this was too much
        returned = [one for one in self._state.book.held_by(event.peer_id) if one.lease_id in event.lease_ids]
        return self._state.close_attempts(returned, "returned", tell_peers=False) + issue(self._state, now)

    def _form_and_issue(self, now: float) -> list[Action]:
        formed = forming.form_batch(self._state)
        return formed + issue(self._state, now) if formed else []

    # ---------------------------------------------------------------- learner

    def _version_announced(self, event: VersionAnnounced, now: float) -> list[Action]:
        state = self._state
        if state.newest_version is not None and (event.epoch, event.version) <= (state.epoch, state.newest_version):
            return [Note("announced_again", f"version {event.version}", "nothing to do: it is not newer")]
        if event.epoch != state.epoch:
            state.announced.clear()
        state.epoch, state.newest_version = event.epoch, event.version
        oldest_useful = oldest_useful_version(state.batches.next_step, state.settings.staleness_limit)
        state.announced.add(event.version, event.chunk_count, oldest_useful=oldest_useful)
        receivers = [member for member in state.members if member.role == "peer" and not member.standing.quarantined]
        state.dissemination.announced(
            event.version,
            [member.peer_id for member in receivers],
            now,
            plan_id=state.relay.plan_id,
            encodings=event.encodings,
        )
        return [SendAnnouncement(member.peer_id, event.version) for member in state.members]

    def _run_ended(self, event: RunEnded) -> list[Action]:
        """Revoke what is under way, drop what will not be trained, and let everybody go, for good if it is final."""
        if self._state.ended:
            return []
        self._state.ended, self._state.ended_for_good = event.reason or "the run ended", event.final
        self._state.batches.wanted = None
        live = [attempt for group in self._state.book for attempt in group.live()]
        actions = self._state.close_attempts(live, "run_ended", tell_peers=True)
        for group in list(self._state.book):
            actions += self._state.drop_group(group, ["run_ended"] * len(group.fillings()), "run_ended")
        actions += [self._dismiss(member.peer_id) for member in self._state.members]
        return [*actions, Note("run_ended", "run", self._state.ended)]

    def _dismiss(self, peer_id: PeerId) -> Action:
        state = self._state
        return StopPeer(peer_id, state.ended) if state.ended_for_good else EndSession(peer_id, state.ended)

    # ---------------------------------------------------------------- time

    def _tick(self, now: float) -> list[Action]:
        state = self._state
        actions: list[Action] = []
        for member in state.members.silent(now):
            silent_s = now - member.last_seen
            actions += self._gone(member.peer_id, "lost", f"silent for {silent_s:.1f} s", now)
            actions.append(EndSession(member.peer_id, "no heartbeat"))  # a machine that slept comes back
        actions += self._relaying.replan(now) if state.members.end_demotions(now) else self._relaying.tick(now)
        actions += state.close_attempts(state.book.expired(now), "lease_expired", tell_peers=True)
        overdue = self._patience.overdue(now)
        return actions + issue(state, now) + ([] if overdue is None else [overdue])
