"""The actions that the coordinator's core returns and its shell carries out, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from capacity.replan.events import Problem
from coordinator.core.events.audit_events import Unseen
from coordinator.core.events.episode_events import CloseEpisode, OpenEpisode, StepEpisode
from coordinator.core.events.evaluation_events import EvaluationKey
from coordinator.core.events.versions_kept import VersionsKept
from rollcast.wire.ids import (
    EpisodeId,
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
from rollcast.wire.rollouts import LeaseGrant, Rollout, Segment


@dataclass(frozen=True, slots=True)
class SendLeases:
    """Send the peer new leases."""

    peer_id: PeerId
    leases: tuple[LeaseGrant, ...]


@dataclass(frozen=True, slots=True)
class RevokeLeases:
    """Order the peer to stop working on these leases."""

    peer_id: PeerId
    lease_ids: tuple[LeaseId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process in a peer's assignment.

    ``address``: addresses to dial, the best first, separated by spaces. Empty where the neighbour dials; "punch" where
    the two dial each other, and the neighbour asks for it.
    """

    peer_id: PeerId
    role: str  # peer, origin or mirror
    address: str
    we_dial: bool
    lan: bool = False  # same site: exempt from upload and download caps


@dataclass(frozen=True, slots=True)
class StripeAssignment:
    """The neighbours to which a peer sends one stripe's chunks, as indices into its neighbours.

    Args:
        bytes_per_second: what the plan expects the stripe to carry; 0: not known.
        heirs: (child, child of that child): the second is sent the stripe's chunks if the first fails.
        adopted: further children, for chunks that come from ``guardian``.
        guardian: the parent of this peer's parent, if this peer is its parent's heir; -1 otherwise.
        relays: how many of the children pass the chunks on; they come first.
    """

    stripe: StripeId
    children: tuple[int, ...]
    bytes_per_second: float
    heirs: tuple[tuple[int, int], ...] = ()
    adopted: tuple[int, ...] = ()
    guardian: int = -1
    relays: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """One peer's part of the relay plan; see RelayPlan in rollcast.proto. Indices are into ``neighbours``."""

    neighbours: tuple[Neighbour, ...] = ()
    stripes: tuple[StripeAssignment, ...] = ()
    list_children: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    fallbacks: tuple[Neighbour, ...] = ()
    direct_copies: bool = False


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Send the peer its part of the relay plan."""

    peer_id: PeerId
    plan_id: PlanId
    part: Assignment


@dataclass(frozen=True, slots=True)
class SendProbe:
    """Have this peer measure its uplink: it sends padding to a neighbour until either bound is reached."""

    peer_id: PeerId
    probe_id: int
    to_peer: PeerId
    bytes_max: int
    seconds_max: float


@dataclass(frozen=True, slots=True)
class SendToPeer:
    """Send the peer this message unchanged. Messages about reachability (coordinator/core/traversal) go this way."""

    peer_id: PeerId
    message: pb.CoordinatorMessage


@dataclass(frozen=True, slots=True)
class TryAddress:
    """Check whether this peer can be dialled at this address; answered by DialBackEnded.

    ``host``: the IP address that the name in ``address`` must resolve to, unless the operator allows another one; empty
    if ``address`` contains no name.
    """

    check_id: int
    peer_id: PeerId
    address: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class SendAnnouncement:
    """Send the stored signed record and manifests of this version to these members: one action for hundreds of them."""

    peer_ids: tuple[PeerId, ...]
    version: Version


@dataclass(frozen=True, slots=True)
class PlanRelays:
    """Solve ``CoordinatorCore.relay_problem`` beside the event loop, then answer RelaysPlanned with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class PlanActivation:
    """Solve for the peers that should be on; answered by ActivationPlanned or ActivationPlanFailed. One at a time."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class TellActivation:
    """Inform the peer that it is switched on, or off: then it gets no new work. ``reason`` is shown to its owner."""

    peer_id: PeerId
    active: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WantWorker:
    """Have a provider start this worker, or stop it; ``reason`` in words."""

    worker_id: str
    wanted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StopPeer:
    """Order the peer to stop for good, and end its session."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class EndSession:
    """End the peer's session without an order to stop: the peer will reconnect."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class RefuseSession:
    """Send the peer the reason for its refusal, and end its session. It exits with the error of ``code``."""

    peer_id: PeerId
    code: str
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class SetBudget:
    """Limit what workers at providers may cost from now on, in US dollars; None: no limit."""

    usd_per_hour_max: float | None
    usd_total_max: float | None


@dataclass(frozen=True, slots=True)
class SupplyPrompts:
    """Sample this many problems from the mixture; answered by PromptsSupplied. One at a time.

    ``steps``: the learner step in which each is expected to be trained on; empty where the mixture never changes.
    """

    count: int
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class BeginStage:
    """Sample prompts of the steps from this one on for the stage of this number, which began by its condition."""

    number: int  # index in the run's stages
    from_step: Step


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """Record that a prompt group was opened."""

    group_id: GroupId
    problem_id: str
    prompt_token_ids: tuple[int, ...]
    mixture_position: str
    environment: str = ""
    agents: int = 1


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """Record that a slot was issued to a peer: it counts as issued."""

    lease_id: LeaseId
    fencing_token: FencingToken
    group_id: GroupId
    sample_index: int
    seed: int
    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class CloseAttempt:
    """Record that an issued slot ended without being trained; ``reason`` is counted under rollouts dropped."""

    lease_id: LeaseId
    sample_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class CloseGroup:
    """Record that a group ended without being trained, so that no restart opens it again. Its attempts are closed."""

    group_id: GroupId


@dataclass(frozen=True, slots=True)
class StoreRollout:
    """Store a rollout durably, then answer RolloutStored; the upload is not acknowledged before (I1)."""

    rollout_id: RolloutId
    peer_id: PeerId
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class StoreTurn:
    """Store a turn of an episode durably, then answer TurnStored; the upload is not acknowledged before (I1).

    ``observation``: what the environment answered before it; None: nothing. ``rollout`` has the turn's segments only;
    its attempt stays open until the environment has answered.
    """

    episode: EpisodeId
    turn: int
    peer_id: PeerId
    observation: Segment | None
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class DropTurns:
    """Delete the stored turns of a slot: its episode begins anew."""

    group_id: GroupId
    sample_index: int


@dataclass(frozen=True, slots=True)
class StoreEpisode:
    """Store an episode that has ended as the rollout of its slot, with its reward, in place of its turns.

    All durably and at once, then answer RolloutStored.
    """

    rollout_id: RolloutId
    peer_id: PeerId  # made the last turn
    problem_id: str
    rollout: Rollout
    reward: float


Change = CloseAttempt | DropTurns | CloseGroup | StoreEpisode


@dataclass(frozen=True, slots=True)
class CommitTogether:
    """Make several changes of the ledger in one transaction: a crash leaves all of them or none.

    The agents of a game end, or begin anew, together. Each StoreEpisode is answered as it is on its own.
    """

    changes: tuple[Change, ...]

    @property
    def episodes(self) -> list[StoreEpisode]:
        """Return the episodes that are stored, in order."""
        return [one for one in self.changes if isinstance(one, StoreEpisode)]


def each(actions: Iterable[Action]) -> Iterator[Action]:
    """Yield actions, and in place of those that are committed together each change of them."""
    for action in actions:
        if isinstance(action, CommitTogether):
            yield from action.changes
        else:
            yield action


def together(actions: Sequence[Action]) -> list[Action]:
    """Return the actions with their changes of the ledger, if there are several, in one transaction before the rest."""
    changes = tuple(one for one in actions if isinstance(one, Change))
    if len(changes) < 2:
        return list(actions)
    return [CommitTogether(changes), *(one for one in actions if not isinstance(one, Change))]


@dataclass(frozen=True, slots=True)
class AnswerUpload:
    """Send the verdict on one uploaded rollout; ``reason`` is empty if it is accepted."""

    upload_id: UploadId
    lease_id: LeaseId
    sample_index: int
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ScoreRollout:
    """Verify the completion of a stored rollout; answered by RolloutScored or ScoringFailed."""

    rollout_id: RolloutId
    problem_id: str
    packed_completion: bytes  # token ids


@dataclass(frozen=True, slots=True)
class DeliverRollout:
    """Have a cell's uplink upload this stored rollout to the head; answered by SlotsOver."""

    rollout_id: RolloutId


@dataclass(frozen=True, slots=True)
class ScoreEvaluation:
    """Verify a completion of a held-out problem, or have the problem's environment answer its newest turn.

    It is answered by EvaluationScored, EvaluationAnswered or EvaluationUnscorable.

    ``turn_lengths``: of turn, answer, turn, ..., turn, in tokens. ``keep``: whether people may want to read it.
    """

    key: EvaluationKey
    problem: int  # index in the evaluation's problems
    sample_index: int
    example_id: int
    completion_token_ids: tuple[int, ...]
    turn_lengths: tuple[int, ...]
    keep: bool


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Record durably that this step trains on these rollouts, then answer BatchRecorded."""

    step: Step
    rollout_ids: tuple[RolloutId, ...]


@dataclass(frozen=True, slots=True)
class ServeBatch:
    """Serve the recorded batch of this step to the learner, and ``unseen`` rollouts to be judged beside it."""

    step: Step
    replayed: bool
    unseen: tuple[Unseen, ...] = ()


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
class RecordVersionsKept:
    """Record durably which versions the learner keeps from now on, because S was raised."""

    kept: VersionsKept


@dataclass(frozen=True, slots=True)
class RecordQuarantine:
    """Record durably that an identity is quarantined, with the receipt (a serialized pb.Signed) that convicted it."""

    peer_id: PeerId
    reason: str
    receipt: bytes


@dataclass(frozen=True, slots=True)
class LiftQuarantine:
    """Delete the record of an identity's quarantine: the operator enabled it, or it appealed."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class AnswerEpoch:
    """Answer the learner's request for an epoch, which is recorded: training continues at ``step``."""

    request_id: int
    epoch: Epoch
    step: Step


@dataclass(frozen=True, slots=True)
class Penalise:
    """Record and show a peer's fault, which is not ours; ``quarantined`` peers neither relay nor generate any more."""

    peer_id: PeerId
    reason: str
    quarantined: bool

    @property
    def kind(self) -> str:
        """Kind of the entry in the run's story."""
        return "quarantined" if self.quarantined else "penalised"


@dataclass(frozen=True, slots=True)
class Note:
    """Append one line to the run's story, the event table, with its cause."""

    kind: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class FailRun:
    """Stop a run that cannot continue, with the error of this code.

    RC201: the origin or the learner is missing; RC202: there are no peers.
    """

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
    | PlanRelays
    | PlanActivation
    | TellActivation
    | WantWorker
    | StopPeer
    | EndSession
    | RefuseSession
    | SetBudget
    | SupplyPrompts
    | BeginStage
    | RecordGroup
    | RecordAttempt
    | CloseAttempt
    | CloseGroup
    | StoreRollout
    | StoreTurn
    | DropTurns
    | StoreEpisode
    | CommitTogether
    | OpenEpisode
    | StepEpisode
    | CloseEpisode
    | AnswerUpload
    | ScoreRollout
    | DeliverRollout
    | ScoreEvaluation
    | RecordBatch
    | ServeBatch
    | RecordEpoch
    | RecordVersionsKept
    | RecordQuarantine
    | LiftQuarantine
    | AnswerEpoch
    | Penalise
    | Note
    | FailRun
)
