"""Name the event that caused an action of the coordinator; every entry of the run's story has such a cause."""

from __future__ import annotations

from typing import assert_never

from coordinator.core.events.audit_events import AuditRestored
from coordinator.core.events.cell_events import MembersConvicted, SlotsOver
from coordinator.core.events.episode_events import EpisodeFailed, EpisodeOpened, EpisodeStepped
from coordinator.core.events.evaluation_events import (
    EvaluationAnswered,
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
from coordinator.core.events.operator_events import (
    BudgetChanged,
    PeerBanned,
    PeerDrained,
    PeerEnabled,
    PeerPinned,
    PricesChanged,
    PublishPeriodChanged,
    RunFinishing,
    RunPaused,
    RunResumed,
    StalenessLimitChanged,
)
from coordinator.core.events.profile_events import ProfileReported, ProfileRequested
from coordinator.core.events.reach_events import (
    DialBackEnded,
    PunchEnded,
    PunchRequested,
    ReachabilityTold,
    RecordGiven,
    SeenAt,
)


def cause_of(event: Event) -> str:
    """Return a short name of the event: what it concerns, and the id of that."""
    match event:
        case PeerJoined() | PeerLeft() | HeartbeatReceived() | WorkRequested() | VersionHeld() | LeasesReturned():
            return f"peer {event.peer_id}"
        case IdentityNoticed():
            return f"peer {event.peer_id}"
        case ReachabilityTold() | SeenAt() | PunchRequested() | RecordGiven():
            return f"peer {event.peer_id}"
        case PunchEnded():
            return f"punch {event.punch_id}"
        case DialBackEnded():
            return f"dial-back {event.check_id}"
        case PeerAccused():
            return f"peer {event.accuser}"
        case RolloutReceived() | MalformedRollout():
            return f"upload {event.upload_id}"
        case PartialReceived():
            return f"lease {event.partial.lease_id}"
        case TurnStored():
            return f"lease {event.lease_id}"
        case EpisodeOpened() | EpisodeStepped() | EpisodeFailed():
            return f"episode {event.episode}"
        case RolloutStored() | RolloutScored() | ScoringFailed():
            return f"rollout {event.rollout_id}"
        case BatchRequested() | BatchRecorded() | EpochRequested():
            return f"step {event.step + 1}"  # people count steps from 1
        case StepFinished():  # the number of steps that are done
            return f"step {event.step}"
        case VersionAnnounced():
            return f"version {event.version}"
        case EvaluationRequested() | EvaluationAnswered() | EvaluationScored() | EvaluationUnscorable():
            return f"version {event.key.version}"
        case EpochRecorded():
            return f"epoch {event.epoch}"
        case LearnerStatusChanged():
            return f"learner {event.phase}".rstrip()
        case LearnerCalled() | ProfileReported():
            return "learner"
        case ProfileRequested():
            return "operator"
        case RelaysPlanned():
            return f"relay plan {event.number}"
        case ActivationPlanned():
            return f"plan {event.solved.number}"
        case ActivationPlanFailed():
            return f"plan {event.number}"
        case WorkersOffered():
            return "providers"
        case RunEnded():
            return "end of the run"
        case PromptsSupplied():
            return "prompts"
        case SlotsLent() | SlotsOver() | MembersConvicted():
            return "head"
        case Started() | StandbyRestored() | LearnedRestored() | EarnedRestored() | AuditRestored():
            return "start"
        case Tick():
            return "time"
        case ArrivalsBegan() | ArrivalsEnded():
            return "arrivals"
        case PeerPinned() | PeerDrained() | PeerBanned() | PeerEnabled():
            return "operator"
        case PricesChanged() | StalenessLimitChanged() | PublishPeriodChanged() | BudgetChanged():
            return "operator"
        case RunPaused() | RunResumed() | RunFinishing():
            return "operator"
        case _:
            assert_never(event)
