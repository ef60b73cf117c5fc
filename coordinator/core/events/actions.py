"""What the coordinator's core asks its shell to do, in order."""

from __future__ import annotations

from dataclasses import dataclass

from capacity.replan.events import Problem
from rollcast.wire.ids import (
    Epoch,
    FencingToken,
    GroupId,
    LeaseId,
    PeerId,
    PlanId,
    RolloutId,
    Step,
    StripeId,
    UploadId,
    Version,
)
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import LeaseGrant, Rollout


@dataclass(frozen=True, slots=True)
class SendLeases:
    peer_id: PeerId
    leases: tuple[LeaseGrant, ...]


@dataclass(frozen=True, slots=True)
class RevokeLeases:
    peer_id: PeerId
    lease_ids: tuple[LeaseId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process in a peer's part of the plan.

    ``address``: ways to it, the best first, with spaces between. Where that one dials it is empty; "punch" where the
    two are to dial each other, and that one asks for it.
    """

    peer_id: PeerId
    role: str  # peer, origin or mirror
    address: str
    we_dial: bool
    lan: bool = False  # same site: exempt from upload and download caps


@dataclass(frozen=True, slots=True)
class StripePart:
    """Where one stripe's chunks go from a peer: ``children`` are indices into its neighbours."""

    stripe: StripeId
    children: tuple[int, ...]
    bytes_per_second: float  # what the plan expects the stripe to carry; 0: not known


@dataclass(frozen=True, slots=True)
class PlanPart:
    """One peer's part of the relay plan; see RelayPlan in rollcast.proto. Indices are into ``neighbours``."""

    neighbours: tuple[Neighbour, ...] = ()
    stripes: tuple[StripePart, ...] = ()
    list_children: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    fallbacks: tuple[Neighbour, ...] = ()
    direct_copies: bool = False


@dataclass(frozen=True, slots=True)
class SendPlan:
    """This peer's part of the relay plan."""

    peer_id: PeerId
    plan_id: PlanId
    part: PlanPart


@dataclass(frozen=True, slots=True)
class SendProbe:
    """Let this peer measure its uplink: send padding to a neighbour until either bound is reached."""

    peer_id: PeerId
    probe_id: int
    to_peer: PeerId
    bytes_max: int
    seconds_max: float


@dataclass(frozen=True, slots=True)
class SendToPeer:
    """Send this message as it is: those about ways to each other (coordinator/reach), which nothing else looks at."""

    peer_id: PeerId
    message: pb.CoordinatorMessage


@dataclass(frozen=True, slots=True)
class TryAddress:
    """See whether this peer can be dialled at this address; answered by DialBackEnded.

    ``host``: IP address that the name in it must lead to, or to one that the operator allows; empty: it is no name.
    """

    check_id: int
    peer_id: PeerId
    address: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class SendAnnouncement:
    """Send the stored signed record and manifests of this version."""

    peer_id: PeerId
    version: Version


@dataclass(frozen=True, slots=True)
class PlanActivation:
    """Find out which peers should be on; answered by ActivationPlanned or ActivationPlanFailed. One at a time."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class TellActivation:
    """Tell the peer that it is switched on, or off: it is then given nothing new. ``reason`` is for its owner."""

    peer_id: PeerId
    active: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WantWorker:
    """A provider should run this worker, or not run it any more; ``reason`` in words."""

    worker_id: str
    wanted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StopPeer:
    """Tell the peer to stop for good, and end its session."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class EndSession:
    """End the peer's session without telling it to stop: it may come back, and will try to."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class RefuseSession:
    """Tell the peer why it is refused (the error of this code, which is its exit status), and end its session."""

    peer_id: PeerId
    code: str
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class SetBudget:
    """What workers at providers may cost from now on, in US dollars; None: no limit."""

    usd_per_hour_max: float | None
    usd_total_max: float | None


@dataclass(frozen=True, slots=True)
class SupplyPrompts:
    """Draw this many problems from the mixture; answered by PromptsSupplied. One at a time.

    ``steps``: for which learner step each is expected to be trained on; empty where the mixture is always the same.
    """

    count: int
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """A prompt group was opened."""

    group_id: GroupId
    problem_id: str
    prompt_token_ids: tuple[int, ...]
    mixture_position: str


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """One slot was issued to a peer: counted as issued."""

    lease_id: LeaseId
    fencing_token: FencingToken
    group_id: GroupId
    sample_index: int
    seed: int
    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class CloseAttempt:
    """An issued slot ended without being trained; ``reason`` is counted under rollouts dropped."""

    lease_id: LeaseId
    sample_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class CloseGroup:
    """A group ended without being trained; every attempt at it is closed before. It will not be taken up again."""

    group_id: GroupId


@dataclass(frozen=True, slots=True)
class StoreRollout:
    """Store durably, then answer RolloutStored. Never acknowledged before."""

    rollout_id: RolloutId
    peer_id: PeerId
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class AnswerUpload:
    """The verdict on one uploaded rollout; ``reason`` is empty when accepted."""

    upload_id: UploadId
    lease_id: LeaseId
    sample_index: int
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ScoreRollout:
    """Verify the completion of a stored rollout; answered by RolloutScored."""

    rollout_id: RolloutId
    problem_id: str
    completion_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Record durably that this step trains on these rollouts, then answer BatchRecorded."""

    step: Step
    rollout_ids: tuple[RolloutId, ...]


@dataclass(frozen=True, slots=True)
class ServeBatch:
    """The recorded batch of this step may be served to the learner."""

    step: Step
    replayed: bool


@dataclass(frozen=True, slots=True)
class RecordEpoch:
    """Record durably that versions from now on are of this epoch, then answer EpochRecorded.

    The batches of steps ``step_from`` up to, not including, ``step_to`` are recorded as empty ones in the same
    transaction. Versions of the epoch before above ``common_version`` (None: all of them) are orphans.
    """

    epoch: Epoch
    step_from: Step
    step_to: Step
    common_version: Version | None


@dataclass(frozen=True, slots=True)
class AnswerEpoch:
    """The epoch that the learner asked for is recorded: it goes on at ``step``."""

    request_id: int
    epoch: Epoch
    step: Step


@dataclass(frozen=True, slots=True)
class Penalise:
    """Their bug, not ours: written down and shown; ``quarantined`` peers relay and generate no more."""

    peer_id: PeerId
    reason: str
    quarantined: bool

    @property
    def kind(self) -> str:
        """Of its entry in the run's story."""
        return "quarantined" if self.quarantined else "penalised"


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the run's story: appended to the event table with its cause."""

    kind: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class FailRun:
    """The run cannot go on: stop it with the error of this code (RC201: the origin or learner is missing; RC202)."""

    code: str
    reason: str
    fix: str


Action = (
    SendLeases
    | RevokeLeases
    | SendPlan
    | SendProbe
    | SendToPeer
    | TryAddress
    | SendAnnouncement
    | PlanActivation
    | TellActivation
    | WantWorker
    | StopPeer
    | EndSession
    | RefuseSession
    | SetBudget
    | SupplyPrompts
    | RecordGroup
    | RecordAttempt
    | CloseAttempt
    | CloseGroup
    | StoreRollout
    | AnswerUpload
    | ScoreRollout
    | RecordBatch
    | ServeBatch
    | RecordEpoch
    | AnswerEpoch
    | Penalise
    | Note
    | FailRun
)
