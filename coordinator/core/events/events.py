"""The events that the coordinator's core handles. Plain data; times come with handle(event, now), never inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from capacity.model.workers import Worker
from capacity.replan.corrections import Corrections
from capacity.replan.events import Solved
from capacity.replan.preemptions import MarketSeen
from coordinator.core.events.audit_events import AuditRestored, RolloutAudit
from coordinator.core.events.cell_events import CellEvent
from coordinator.core.events.episode_events import EpisodeFailed, EpisodeOpened, EpisodeStepped
from coordinator.core.events.evaluation_events import (
    EvaluationAnswered,
    EvaluationRequested,
    EvaluationScored,
    EvaluationUnscorable,
)
from coordinator.core.events.operator_events import Order
from coordinator.core.events.profile_events import ProfileReported, ProfileRequested
from coordinator.core.events.reach_events import ReachEvent
from rollcast.wire.ids import EncodingId, Epoch, FencingToken, LeaseId, PeerId, RolloutId, Step, UploadId, Version
from rollcast.wire.rollouts import PartialRollout, Rollout


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of every coordinator process: leases that were restored run from now on."""


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A peer opened a session. A second session of the same peer replaces the first one."""

    peer_id: PeerId
    role: str  # "peer" or "origin"
    name: str
    address: str  # host:port that other peers may dial, empty if none
    concurrent_rollouts: int
    hardware: str
    region: str = ""  # as the peer's operator names it, empty if unknown
    site: str = ""  # the same for peers that share a local network, empty if unknown
    metered: bool = False  # its upload costs money
    upload_cap_bytes_per_second: float = 0.0  # 0: none
    held_leases: tuple[LeaseId, ...] | None = None  # leases of earlier sessions that it still has; None: not reported
    software: str = ""  # name and release
    public_name: str = ""  # shown to the public by its owner's wish, empty if none
    host: str = ""  # IP address from which its session comes, empty if unknown
    invite: str = ""  # id of the invite with which the identity joined, empty if unknown
    sampler: str = ""  # kind of engine and device that it names, such as "jax-cpu"; empty if it has none
    is_cell: bool = False  # a cell's uplink: the members of the cell generate what it uploads
    heard_version: Version | None = None  # newest one announced in this session, which its gateway kept; None: none was


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """A session ended. The core finds silent peers itself, at Tick.

    ``finished``: the peer sent Goodbye, and its attempts end with it. Otherwise it may reconnect and continue them.
    """

    peer_id: PeerId
    reason: str
    finished: bool = False


@dataclass(frozen=True, slots=True)
class IdentityNoticed:
    """An identity is used from another machine than before (coordinator/rpc/clones.py): it moved, or was copied."""

    peer_id: PeerId
    what: Literal["identity_moved", "identity_cloned"]
    detail: str


class LinkFacts(msgspec.Struct, frozen=True, gc=False):
    """One open chunk link as its reporting end sees it. Counters run since it opened; 0: not measured.

    A struct, because there are several for every heartbeat: a frozen dataclass takes four times as long. The collector
    of garbage need not look at it, as it holds only plain values.
    """

    peer_id: PeerId
    transport: str  # direct, punched, p2p, relayed, mirror
    rtt_s: float
    bytes_sent: int
    bytes_received: int
    sent_bytes_per_second: float
    congestion_control: str
    lan: bool = False  # both ends are in one local network
    lost_share: float = 0.0  # of the TCP segments that the reporting end sent lately
    window_limited_share: float = 0.0  # of the time with bytes to send: the other end's receive window was full


@dataclass(frozen=True, slots=True)
class SwapFacts:
    """The newest exchange of the weights that a peer's engine generates with."""

    version: Version
    kind: str  # keyframe: all weights were written; delta: those that differ from the version before
    paused_s: float  # for which nothing could be generated
    moved_bytes: int  # to the devices
    read_back: bool  # whether the version's hash is one of the weights read out of what generates


class PeerFacts(msgspec.Struct, frozen=True, gc=False):
    """The figures of a heartbeat. Counters run since the peer's process started; a rate of 0 is not measured yet.

    A struct for the reason of LinkFacts; what it holds refers to nothing that could refer to it.
    """

    state: str
    reason: str
    active_version: Version | None
    tokens_generated: int
    chunk_bytes_from_origin: int
    chunk_bytes_from_peers: int
    chunk_bytes_sent: int
    chunks_rejected: int
    receiving_version: Version | None
    receiving_chunks_have: int
    receiving_chunks_total: int
    tokens_per_second: float
    uplink_bytes_per_second: float = 0.0
    uplink_measured_s: float = 0.0  # of full uplink behind that figure
    uplink_age_s: float = 0.0  # since it was last measured
    downlink_bytes_per_second: float = 0.0  # a lower bound
    links: tuple[LinkFacts, ...] = ()
    chunks_duplicate: int = 0
    chunks_hedged: int = 0
    reparentings: int = 0
    delta_bytes_saved: int = 0
    receiving_encoding_id: EncodingId | None = None
    receiving_map: bytes = b""  # share held, 0 to 255, of each of up to 128 equal runs of chunks
    uplink_probe_id: int = 0
    sending_stopped: bool = False  # its owner's limits let no chunks leave at the moment
    receiving_stopped: bool = False  # its owner's limits let no chunks arrive at the moment
    p2p: str = ""  # state of its libp2p host: running, or why it does not run; empty: not wanted
    swap: SwapFacts | None = None  # None: none yet
    addresses_refused: int = 0  # named to it by others, and not dialled
    engine_devices: int = 0  # that its engine divides the model among; 0: not known
    engine_versions: int = 0  # whose weights they have room for; 0: not known
    loop_lag_s: float = 0.0  # by which its event loop was late lately
    cell_workers: int | None = None  # connected workers of a cell; None: not known, or it is no cell
    cell_slots: int = 0  # rollouts that they generate at once


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A peer reported its state.

    Args:
        links_left_out: whether ``facts`` has no links, and those reported before still count.
    """

    peer_id: PeerId
    facts: PeerFacts
    links_left_out: bool = False

    def completed(self, before: PeerFacts | None) -> PeerFacts:
        """Return the facts with all links.

        Args:
            before: the facts of the heartbeat before this one, with all links.
        """
        if not self.links_left_out or before is None:
            return self.facts
        return msgspec.structs.replace(self.facts, links=before.links)


@dataclass(frozen=True, slots=True)
class WorkRequested:
    """The peer can take this many more slots; this replaces its earlier request."""

    peer_id: PeerId
    free_slots: int


@dataclass(frozen=True, slots=True)
class VersionHeld:
    """The peer holds a complete, verified copy and generates (or will generate) with it."""

    peer_id: PeerId
    epoch: Epoch
    version: Version
    bytes_received: int = 0  # of chunks, for this version


@dataclass(frozen=True, slots=True)
class LeasesReturned:
    """The peer will not work on these leases."""

    peer_id: PeerId
    lease_ids: tuple[LeaseId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PeerAccused:
    """A peer reports that another one sent it a chunk that does not match its signed hash.

    ``receipt``: the culprit's signed statement that proves it, as a serialized pb.Signed, whose maker has verified it
    against the signed chunk list; empty if the report is the accuser's word alone.
    """

    accuser: PeerId
    culprit: PeerId
    version: Version
    chunk_index: int
    reason: str
    receipt: bytes = b""


@dataclass(frozen=True, slots=True)
class PromptsSupplied:
    """Answer to SupplyPrompts, in mixture order. Fewer than asked means the source is exhausted."""

    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem's prompt. ``mixture_position`` is where the source stands after it (opaque JSON).

    ``environment``: name of the environment that answers its assistant turns; empty: one turn, which is scored.
    ``agents``: how many agents its game has; each makes a trajectory of its own.
    """

    problem_id: str
    prompt_token_ids: tuple[int, ...]
    mixture_position: str
    environment: str = ""
    agents: int = 1


@dataclass(frozen=True, slots=True)
class SlotsLent:
    """A cell's uplink brought slots of the head's leases, each as a prompt (coordinator/core/lent). It may repeat them.

    They need no request, and the source is never exhausted.
    """

    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class RolloutReceived:
    """A peer uploaded a rollout. ``upload_id`` names the call that waits for the verdict.

    rollcast.wire.rollout_messages has checked the bounds of every field; coordinator/core/decisions/rollouts.py checks
    whether the rollout can be what it claims.
    """

    upload_id: UploadId
    peer_id: PeerId
    rollout: Rollout
    text_end: int | None = None  # tokens up to the first that completes a stop string


@dataclass(frozen=True, slots=True)
class MalformedRollout:
    """An upload could not be parsed as a rollout. Its sender, lease and slot are as the upload claims."""

    upload_id: UploadId
    peer_id: PeerId
    lease_id: LeaseId
    fencing_token: FencingToken
    sample_index: int
    problem: str


@dataclass(frozen=True, slots=True)
class PartialReceived:
    """A peer sent what a running attempt has generated; rollcast.wire.rollout_messages has checked every bound."""

    peer_id: PeerId
    partial: PartialRollout


@dataclass(frozen=True, slots=True)
class RolloutStored:
    """The rollout of a StoreRollout is durable."""

    rollout_id: RolloutId


@dataclass(frozen=True, slots=True)
class TurnStored:
    """The turn of a StoreTurn is durable; it is named by the attempt that made it."""

    lease_id: LeaseId
    sample_index: int


@dataclass(frozen=True, slots=True)
class RolloutScored:
    """A rollout was scored."""

    rollout_id: RolloutId
    reward: float


@dataclass(frozen=True, slots=True)
class ScoringFailed:
    """A rollout could not be scored: the verifier failed, and the completion is not to blame.

    ``reason`` is one word, ``detail`` the end of a traceback or a sentence. ``retryable``: whether it may work next
    time, or elsewhere.
    """

    rollout_id: RolloutId
    reason: str
    detail: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class BatchRequested:
    """The learner requested the batch of this step. It may repeat the request."""

    step: Step


@dataclass(frozen=True, slots=True)
class BatchRecorded:
    """The batch of a RecordBatch is durable."""

    step: Step


@dataclass(frozen=True, slots=True)
class AnnouncedEncoding:
    """One of the encodings in which a version can be received."""

    encoding_id: EncodingId
    kind: str  # keyframe or delta
    base_version: Version | None  # of a delta
    size_bytes: int


@dataclass(frozen=True, slots=True)
class VersionAnnounced:
    """The learner announced a version that the origin holds durably; its record is already stored."""

    epoch: Epoch
    version: Version
    chunk_count: int  # of the encoding that has most
    encodings: tuple[AnnouncedEncoding, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochRequested:
    """The resumed learner reached another state than the published one. It may repeat the request.

    ``step`` counts the learner steps that its state has completed; ``common_version`` is the newest published version
    whose state it did reach again; None if there is none. ``request_id`` names the call that waits for the answer.
    """

    request_id: int
    step: Step
    common_version: Version | None


@dataclass(frozen=True, slots=True)
class EpochRecorded:
    """The epoch of a RecordEpoch is durable."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class StepFinished:
    """The learner completed a step, with these figures and findings about the rollouts that it was trained on."""

    step: Step
    values: Mapping[str, float]
    audits: tuple[RolloutAudit, ...] = ()


@dataclass(frozen=True, slots=True)
class LearnerStatusChanged:
    """The learner reported what it is doing."""

    phase: str
    detail: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LearnerCalled:
    """The learner made a call, or one of its calls ended: its process is running."""


@dataclass(frozen=True, slots=True)
class RelaysPlanned:
    """The problem of the PlanRelays with this number is solved.

    It brings no plan: the problem has its own solution, which a replay of the record computes again. With ``afresh``
    that does not continue the plan in force, because the process that had made it was lost.
    """

    number: int
    afresh: bool = False


@dataclass(frozen=True, slots=True)
class ActivationPlanned:
    """The answer to a PlanActivation."""

    solved: Solved


@dataclass(frozen=True, slots=True)
class ActivationPlanFailed:
    """A PlanActivation could not be answered."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class StandbyRestored:
    """The peers that the capacity model had switched off before a restart: why, and whether without new versions."""

    peers: Mapping[PeerId, tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class KeptPeer:
    """What an identity earned: the slots that it may hold, the newest version that it used, its invite."""

    slots: int
    oldest_own_version: Version
    invite: str


@dataclass(frozen=True, slots=True)
class EarnedRestored:
    """What the peers of an earlier coordinator had earned."""

    peers: Mapping[PeerId, KeptPeer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LearnedRestored:
    """What the capacity model had learned before a restart: preemptions by market, and factors on its figures."""

    markets: tuple[MarketSeen, ...] = ()
    corrections: Corrections = field(default_factory=Corrections)


@dataclass(frozen=True, slots=True)
class WorkersOffered:
    """The workers that providers can start, replacing the earlier offer, and which peers run at providers.

    ``workers``: those that are not members; ``active`` if they are wanted already. ``backed``: the offer that each peer
    at a provider was started from.
    """

    workers: tuple[Worker, ...]
    backed: Mapping[PeerId, Worker]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over, for good (open leases are revoked, untrained rollouts dropped) or for now.

    ``final`` is False where the run can be resumed: nothing is dropped, and its members get no order to stop.
    """

    reason: str
    final: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: leases expire, silent peers are found, and work that may now begin is issued.

    ``uploads_refused``: whether this coordinator refuses all uploads now, as while its store does not answer.
    """

    uploads_refused: bool = False


@dataclass(frozen=True, slots=True)
class ArrivalsBegan:
    """Events follow that arrived together. Leases are given out once, after the last of them."""


@dataclass(frozen=True, slots=True)
class ArrivalsEnded:
    """The last of the events that arrived together was handled."""


Event = (
    Started
    | PeerJoined
    | PeerLeft
    | IdentityNoticed
    | HeartbeatReceived
    | WorkRequested
    | VersionHeld
    | LeasesReturned
    | PeerAccused
    | PromptsSupplied
    | SlotsLent
    | CellEvent
    | RolloutReceived
    | MalformedRollout
    | PartialReceived
    | RolloutStored
    | TurnStored
    | EpisodeOpened
    | EpisodeStepped
    | EpisodeFailed
    | RolloutScored
    | ScoringFailed
    | EvaluationRequested
    | EvaluationAnswered
    | EvaluationScored
    | EvaluationUnscorable
    | BatchRequested
    | BatchRecorded
    | VersionAnnounced
    | EpochRequested
    | EpochRecorded
    | StepFinished
    | LearnerStatusChanged
    | LearnerCalled
    | ProfileRequested
    | ProfileReported
    | RelaysPlanned
    | ActivationPlanned
    | ActivationPlanFailed
    | Order
    | ReachEvent
    | StandbyRestored
    | LearnedRestored
    | EarnedRestored
    | AuditRestored
    | WorkersOffered
    | RunEnded
    | Tick
    | ArrivalsBegan
    | ArrivalsEnded
)
