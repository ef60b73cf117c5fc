"""Make the coordinator's decisions: take events and return actions, without a clock, I/O or randomness of its own.

Each concern has a module of its own: membership, leases, staleness, batches, accounting, relay plan, and so on.
``decisions/state.py`` holds their data together; this module routes each event to the modules that it concerns, in
order. ``decisions/rollouts.py`` handles a rollout's events, from top to bottom in the order in which they occur.
"""

from __future__ import annotations

from coordinator.core import cell
from coordinator.core.activation.activation import Activation
from coordinator.core.activation.preview import Question, question_of
from coordinator.core.activation.status import ActivationStatus
from coordinator.core.broadcast.problem import RelayProblem
from coordinator.core.decisions import epoch_change, evaluating, lifecycle, profiling, rollouts, verdicts
from coordinator.core.decisions.broadcasts import Broadcasts
from coordinator.core.decisions.episodes import turn_so_far
from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.settings import CoreSettings
from coordinator.core.decisions.speculation import Speculation
from coordinator.core.decisions.stalls import Stalls
from coordinator.core.decisions.state import CoreState, Restored
from coordinator.core.decisions.work_requests import WorkRequests
from coordinator.core.events.actions import Action, BeginStage, Note
from coordinator.core.events.audit_events import AuditRestored
from coordinator.core.events.cell_events import MembersConvicted, SlotsOver
from coordinator.core.events.episode_events import EpisodeFailed, EpisodeOpened, EpisodeStepped
from coordinator.core.events.evaluation_events import (
    EvaluationAnswered,
    EvaluationKey,
    EvaluationRequested,
    EvaluationScored,
    EvaluationUnscorable,
)
from coordinator.core.events.events import (
    ActivationPlanFailed,
    ActivationPlanned,
    ArrivalsBegan,
    ArrivalsEnded,
    BatchRecorded,
    BatchRequested,
    EarnedRestored,
    EpochRecorded,
    EpochRequested,
    Event,
    HeartbeatReceived,
    IdentityNoticed,
    LearnedRestored,
    LearnerCalled,
    LearnerStatusChanged,
    LeasesReturned,
    MalformedRollout,
    PartialReceived,
    PeerAccused,
    PeerJoined,
    PeerLeft,
    PromptsSupplied,
    RelaysPlanned,
    RolloutReceived,
    RolloutScored,
    RolloutStored,
    RunEnded,
    ScoringFailed,
    SlotsLent,
    StandbyRestored,
    Started,
    StepFinished,
    Tick,
    TurnStored,
    VersionAnnounced,
    VersionHeld,
    WorkersOffered,
    WorkRequested,
)
from coordinator.core.events.prices import Budget, Price
from coordinator.core.events.profile_events import ProfileOrder, ProfileReported, ProfileRequested
from coordinator.core.events.reach_events import (
    DialBackEnded,
    PunchEnded,
    PunchRequested,
    ReachabilityTold,
    RecordGiven,
    SeenAt,
)
from coordinator.core.leases.attempts import AttemptKey
from coordinator.core.leases.evaluation_book import Evaluation
from coordinator.core.lent.lent import Lent
from coordinator.core.members import earned_book
from coordinator.core.members.census import census_of
from coordinator.core.members.learner_profile import Profile
from coordinator.core.members.membership import Member
from coordinator.core.members.standby import standby_of
from coordinator.core.operator import Operator
from coordinator.core.presence import Presence
from coordinator.core.staleness.age_breakdown import Split
from coordinator.core.staleness.epochs import EpochBook
from coordinator.core.staleness.policy import RulesInForce
from coordinator.core.status.broadcast import BroadcastStatus, build_broadcast_status
from coordinator.core.status.status import RunStatus, Status, Waiting, WaitingWatch, build_run_status, build_status
from coordinator.core.status.turns import Turns
from coordinator.core.status.wait_causes import WaitCauses
from coordinator.core.traversal.traversal import Traversal
from rollcast.wire.ids import Epoch, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import Rollout

__all__ = ["CoordinatorCore", "CoreSettings", "Restored", "Status", "Waiting"]

_MOVES_THE_LEARNER = (Tick, BatchRequested, BatchRecorded)  # events after which its wait is attributed to a cause
#: The most frequent events: none of them changes which processes are missing, or what the run as a whole waits for.
_FREQUENT = frozenset(
    {
        *(HeartbeatReceived, RolloutReceived, RolloutStored, WorkRequested, VersionHeld, PartialReceived),
        *(ArrivalsBegan, ArrivalsEnded),
    }
)


class CoordinatorCore:
    """Decides which peers do what, and which rollouts count.

    ``now`` is any monotonic clock in seconds, the same for every call. Our own bugs raise ValueError or KeyError;
    errors of peers or the learner become actions.
    """

    def __init__(self, settings: CoreSettings, restored: Restored | None = None) -> None:
        self.settings = settings
        self._state = CoreState(settings, restored)
        self._rollouts = rollouts.Rollouts(self._state, last_rollout=0 if restored is None else restored.last_rollout)
        self._waiting = WaitingWatch(self._state)
        self._started_at: float | None = None
        self._elapsed_before_s = 0.0 if restored is None else restored.elapsed_s
        self._stalls = Stalls(self._state)
        self._broadcasts = Broadcasts(self._state)
        self._traversal = Traversal(self._state, self._broadcasts)
        self._presence = Presence(self._state, self._broadcasts, self._traversal)
        self._activation = Activation(self._state, self._broadcasts)
        self._operator = Operator(self._state, self._broadcasts, self._presence, self._activation)
        self._work_requests = WorkRequests(self._state)
        self._speculation = Speculation(self._state)
        self._wait_causes = WaitCauses(self._state)

    # ---------------------------------------------------------------- questions of the shell

    @property
    def epoch(self) -> Epoch:
        return self._state.epochs.current

    @property
    def epochs(self) -> EpochBook:
        """The epochs that were opened, and which versions are orphans."""
        return self._state.epochs

    @property
    def rules(self) -> RulesInForce:
        """The staleness limits in force."""
        return self._state.rules

    @property
    def age_split(self) -> Split:
        """The ages of all trained rollouts, split by the activities on which the time was spent."""
        return self._state.ages.total

    @property
    def newest_version(self) -> Version | None:
        """The newest announced version."""
        return self._state.newest_version

    @property
    def recorded_batches(self) -> int:
        """Number of recorded batches, which are those of the steps below it."""
        return self._state.batches.recorded

    @property
    def paused(self) -> bool:
        """Whether the operator has paused the run, so that no batch is formed."""
        return bool(self._state.paused)

    def is_last(self, step: Step) -> bool:
        """Return whether no batch is formed for this step or later ones, because the operator ends the run."""
        return self._state.last_step is not None and step >= self._state.last_step

    @property
    def origin(self) -> Member | None:
        """The origin that the learner pushes to; None until one has joined."""
        return self._state.members.origin

    @property
    def prices(self) -> tuple[Price, ...]:
        """Prices of peers; the first that matches a peer applies."""
        return self._state.prices

    @property
    def budget(self) -> Budget:
        """The spending limits."""
        return self._state.budget

    def standby(self) -> dict[PeerId, tuple[str, bool]]:
        """Return the peers that the capacity model switched off, so that a restarted coordinator resumes with them."""
        return standby_of(self._state.members)

    def learned(self) -> LearnedRestored:
        """Return what the capacity model has learned, so that a restarted coordinator resumes with it."""
        return self._activation.learned

    def cell(self) -> cell.CellFacts:
        """Return what a cell's uplink reports to the head."""
        return cell.facts_of(self._state)

    def undelivered(self) -> list[tuple[Lent, RolloutId]]:
        """Return the stored rollouts that a cell's uplink must deliver, oldest first, with their slots at the head."""
        return [(lent, filling.rollout_id) for lent, filling in cell.undelivered(self._state)]

    def earned(self) -> EarnedRestored:
        """Return what peers earned, so that a restarted coordinator resumes with it."""
        return earned_book.earned_of(self._state.members)

    def audit_json(self) -> str:
        """Return what audits found about each identity, so that a restarted coordinator resumes with it."""
        return self._state.audit.to_json()

    def preview_question(self, now: float) -> Question:
        """Return the data from which the effect of an operator's action or of other settings is previewed."""
        return question_of(self._state, self._activation.corrections, now)

    def banned_because(self, peer_id: PeerId) -> str:
        """Return why this identity is banned; empty if it is not."""
        return self._state.members.banned_because(peer_id)

    def evaluation(self, key: EvaluationKey) -> Evaluation | None:
        """Return an evaluation with its scores so far; None if it is not known, so that it has to be requested."""
        return self._state.evaluations.get(key)

    @property
    def profile(self) -> Profile | None:
        """The newest profile of the learner; None if there was none since the start."""
        return self._state.profile

    def profile_due(self) -> ProfileOrder | None:
        """Return the order for a profile that the learner has to have now; None if there is none."""
        return profiling.due(self._state)

    def profile_refused(self, now: float) -> str:
        """Return why no profile of the learner can begin now; empty if one can."""
        return profiling.why_refused(self._state, now)

    def expects(self, peer_id: PeerId, key: AttemptKey) -> bool:
        """Return whether the content of this peer's upload under an attempt matters, because the peer holds it."""
        attempt = self._state.book.live_attempt(key)
        return (attempt is not None and attempt.peer_id == peer_id) or self._state.evaluations.concerns(key)

    def turn_so_far(self, rollout: Rollout) -> bytes:
        """Return the packed token ids of an upload since the last answer of an environment, for stop strings."""
        evaluated = evaluating.turn_so_far(self._state, rollout)
        if evaluated is not None:
            return evaluated
        attempt = self._state.book.live_attempt((rollout.lease_id, rollout.sample_index))
        if attempt is None or not rollout.prefix_digest:
            return rollout.packed_completion
        episode = self._state.book.group(attempt.group_id).slots[attempt.sample_index].episode
        return turn_so_far(attempt, episode, rollout)

    @property
    def relay_problem(self) -> RelayProblem | None:
        """The relay plan that the newest PlanRelays asks for; None if none is asked for. Any process may solve it."""
        return self._broadcasts.problem

    @property
    def has_peers(self) -> bool:
        """Whether any peer has a session."""
        return self._state.members.has_role("peer")

    @property
    def state(self) -> CoreState:
        """The state, for views, which only read it."""
        return self._state

    def chunk_bytes_sent(self) -> dict[PeerId, int]:
        """Return the chunk bytes that each member reports as sent to others since its process started."""
        return {one.peer_id: one.facts.chunk_bytes_sent for one in self._state.members if one.facts is not None}

    def peer_named(self, words: str) -> PeerId | None:
        """Return the peer with this id, or the only one with this name; None if there is none or several.

        The search includes peers that left lately.
        """
        return self._state.members.peer_named(words)

    def waiting(self, now: float) -> Waiting:
        """Return what the run waits for, since when, and what happens next."""
        return self._waiting.describe(now, self._stalls.no_peer_since)

    def status(self, now: float) -> Status:
        """Return the status of the run and its members."""
        waiting, elapsed_s, census = self.waiting(now), self.elapsed_s(now), census_of(self._state.members)
        activation = self._activation.status(census)
        return build_status(self._state, waiting, activation, census, now=now, elapsed_s=elapsed_s)

    def run_status(self, now: float) -> RunStatus:
        """Return the status of the run, without its members."""
        waiting, elapsed_s, census = self.waiting(now), self.elapsed_s(now), census_of(self._state.members)
        activation = self._activation.status(census)
        return build_run_status(self._state, waiting, activation, census, now=now, elapsed_s=elapsed_s)

    def activation_status(self) -> ActivationStatus:
        """Return what the capacity model decided."""
        return self._activation.status()

    def broadcast(self, now: float) -> Turns[BroadcastStatus]:
        """Return the progress of the newest version's broadcast, in turns."""
        return build_broadcast_status(self._state, now=now)

    def elapsed_s(self, now: float) -> float:
        """Return for how many seconds coordinators have run this run, earlier ones included."""
        return self._elapsed_before_s + self.up_s(now)

    def up_s(self, now: float) -> float:
        """Return for how many seconds this coordinator has run the run."""
        return 0.0 if self._started_at is None else now - self._started_at

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: an invariant is broken; the message names it.
        """
        self._state.validate()
        self._rollouts.validate()

    # ---------------------------------------------------------------- events

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide about one event, and return the actions that the shell must carry out, in order."""
        if self._started_at is None:
            self._started_at = now
        self._state.now = now
        actions = self._dispatch(event, now)
        self._state.ages.observe(event, actions, now)
        if type(event) not in _FREQUENT:
            if isinstance(event, _MOVES_THE_LEARNER):
                actions += self._wait_causes.observe(now)
            self._stalls.observe(now)
            self._waiting.observe(now)
        if self.settings.validate_every_event:
            self.validate()
        return actions

    def _dispatch(self, event: Event, now: float) -> list[Action]:
        match event:  # the most frequent ones first
            case HeartbeatReceived():
                told = lifecycle.announce_on(self._state, lifecycle.ANNOUNCED_WITH_A_HEARTBEAT)
                return told + self._presence.heartbeat(event, now)
            case RolloutReceived():
                self._state.members.seen(event.peer_id, now)
                if self._state.evaluations.concerns((event.rollout.lease_id, event.rollout.sample_index)):
                    return evaluating.received(self._state, event, now)
                return self._rollouts.received(event, now) + issue(self._state, now)
            case RolloutStored():
                return self._rollouts.stored(event, now)
            case RolloutScored():
                return verdicts.scored(self._state, event, now)
            case ScoringFailed():
                return verdicts.failed(self._state, event, now)
            case TurnStored():
                return self._rollouts.turn_stored(event)
            case EpisodeStepped():
                return self._rollouts.episodes.stepped(event, now)
            case EpisodeOpened():
                return self._rollouts.episodes.opened(event, now)
            case EpisodeFailed():
                return self._rollouts.episodes.failed(event)
            case WorkRequested():
                return self._work_requests.requested(event, now)
            case VersionHeld():
                return self._presence.version_held(event, now)
            case PartialReceived():
                self._state.members.seen(event.peer_id, now)
                return self._rollouts.partial(event)
            case ArrivalsBegan():
                self._state.arrivals_go_on = True
                return []
            case ArrivalsEnded():
                self._state.arrivals_go_on = False
                return issue(self._state, now)
            case Started():
                return [*lifecycle.started(self._state, now), *cell.started(self._state)]
            case PeerJoined():
                return self._presence.joined(event, now) + self._activation.joined(event.peer_id)
            case PeerLeft():
                return self._presence.left(event, now)
            case IdentityNoticed():
                return [Note(event.what, event.peer_id, event.detail)]
            case ReachabilityTold() | SeenAt() | PunchRequested() | PunchEnded() | DialBackEnded() | RecordGiven():
                self._state.members.seen(event.peer_id, now)
                return self._traversal.received(event, now)
            case LeasesReturned():
                return self._work_requests.returned(event, now)
            case PeerAccused():
                return self._presence.accused(event, now)
            case SlotsLent():
                return cell.lent(self._state, event, now)
            case SlotsOver():
                return cell.over(self._state, event, now)
            case MembersConvicted():
                return self._presence.convicted_by_head(event, now)
            case PromptsSupplied():
                self._state.prompts.supplied(event.prompts)
                return issue(self._state, now)
            case MalformedRollout():
                self._state.members.seen(event.peer_id, now)
                if self._state.evaluations.concerns((event.lease_id, event.sample_index)):
                    return evaluating.malformed(self._state, event)
                return self._rollouts.malformed(event) + issue(self._state, now)
            case EvaluationRequested():
                return evaluating.requested(self._state, event, now)
            case EvaluationScored():
                return evaluating.scored(self._state, event, now)
            case EvaluationAnswered():
                return evaluating.answered(self._state, event, now)
            case EvaluationUnscorable():
                return evaluating.unscorable(self._state, event, now)
            case BatchRequested():
                return self._learner_moves(rollouts.batch_requested(self._state, event, now), now)
            case BatchRecorded():
                return self._learner_moves(rollouts.batch_recorded(self._state, event, now), now)
            case VersionAnnounced():
                return lifecycle.announced(self._state, event, now)
            case EpochRequested():
                return epoch_change.requested(self._state, event) + issue(self._state, now)
            case EpochRecorded():
                return epoch_change.recorded(self._state, event)
            case StepFinished():
                self._state.progress.step_finished(event.step, event.values)
                began = self._state.stages.finished(event.step, event.values.get("reward_mean"))
                stage = [] if began is None else [BeginStage(*began)]
                return [*stage, *self._presence.audited(event, now)]
            case LearnerStatusChanged():
                self._state.progress.status_changed(event.phase, event.detail, event.values)
                return []
            case LearnerCalled():
                self._state.progress.called_at = now
                return []
            case ProfileRequested():
                return profiling.requested(self._state, event, now)
            case ProfileReported():
                return profiling.reported(self._state, event)
            case RelaysPlanned():
                return self._broadcasts.planned(event)
            case ActivationPlanned():
                return self._activation.planned(event.solved, now)
            case ActivationPlanFailed():
                return self._activation.plan_failed(event.number, event.why, now)
            case AuditRestored():
                self._presence.audit_restored(event)
                return []
            case StandbyRestored():
                self._activation.restored(event, now)
                return []
            case EarnedRestored():
                earned_book.restore(self._state.members, event)
                return []
            case LearnedRestored():
                self._activation.learned_restored(event, now)
                return []
            case WorkersOffered():
                self._activation.offered(event, now)
                return []
            case RunEnded():
                return lifecycle.run_ended(self._state, event)
            case Tick():
                return self._tick(event, now)
            case _:
                return self._operator.ordered(event, now)

    def _learner_moves(self, actions: list[Action], now: float) -> list[Action]:
        self._work_requests.learner_moved(now)
        return actions + issue(self._state, now)

    # ---------------------------------------------------------------- time

    def _tick(self, event: Tick, now: float) -> list[Action]:
        state = self._state
        state.lease_clock.tick(now, stands=event.uploads_refused)
        actions = self._presence.drop_silent(now) + lifecycle.announce_on(state, lifecycle.ANNOUNCED_AT_ONCE)
        if state.late_wait.running:
            actions += rollouts.form_batch(state, now)
        actions += self._traversal.tick(now)
        actions += self._broadcasts.tick(now)
        actions += self._work_requests.tick(now) + evaluating.tick(state, now) + profiling.tick(state, now)
        actions += verdicts.tick(state, now) + self._activation.tick(now)
        actions += self._rollouts.episodes.tick(now)
        overdue = self._stalls.overdue(now)
        actions += issue(state, now) + self._speculation.tick(now)
        return actions + ([] if overdue is None else [overdue])
