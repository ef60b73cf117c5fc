"""Define the events that the worker's core handles, and the actions that it asks its shell to carry out. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollcast.wire.ids import Epoch, LeaseId, Version
from rollcast.wire.rollouts import FinishReason, LeaseGrant, PartialRollout, Rollout, Segment, Slot
from rollcast.wire.version_swap import AtVersionSwap


@dataclass(frozen=True, slots=True, order=True)
class VersionKey:
    """A version of the run. Versions rise across epochs: a new epoch's first version is above all earlier ones."""

    version: Version
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SlotWork:
    """One rollout to generate."""

    lease: LeaseGrant
    slot: Slot


@dataclass(frozen=True, slots=True)
class Verdict:
    """The coordinator's answer about one uploaded rollout; ``reason`` is empty when accepted."""

    lease_id: LeaseId
    sample_index: int
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SliceTokens:
    """The tokens that a slice added to one rollout. ``segment`` is None if the rollout only ended."""

    lease_id: LeaseId
    sample_index: int
    segment: Segment | None
    finish_reason: FinishReason | None  # None: the rollout continues


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session with the coordinator opened, perhaps again, with its rules for workers."""

    held_batches: float = 2.0  # generation batches for which the worker may hold slots
    partial_interval_s: float = 0.0  # seconds between partial results of a running rollout; 0: none are sent
    at_version_swap: AtVersionSwap = "finish"  # "finish" swaps between two batches, the others between two slices


@dataclass(frozen=True, slots=True)
class SessionLost:
    reason: str


@dataclass(frozen=True, slots=True)
class LeasesGranted:
    leases: tuple[LeaseGrant, ...]


@dataclass(frozen=True, slots=True)
class LeasesRevoked:
    lease_ids: tuple[LeaseId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class VersionAnnounced:
    """A verified announcement came; the chunks may follow."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class VersionVerified:
    """A version is complete on disk and its state hash matched."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class VersionLoaded:
    """The engine holds a version besides the active one."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class VersionReplaced:
    """A version could not be loaded, because it is no longer held: its memory becomes that of a newer one."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class VersionActivated:
    key: VersionKey


@dataclass(frozen=True, slots=True)
class SliceGenerated:
    """A GenerateBatch or ContinueBatch is done. Rollouts without a change may be left out."""

    batch_id: int
    added: tuple[SliceTokens, ...]
    versions_free: int | None = None  # see peer.engines.base.Generation


@dataclass(frozen=True, slots=True)
class UploadAnswered:
    """The coordinator answered an upload; rollouts without a verdict are retried after ``retry_after_s``, jittered."""

    upload_id: int
    verdicts: tuple[Verdict, ...]
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class UploadFailed:
    upload_id: int
    reason: str
    retry_after_s: float


RestingState = Literal["paused", "resting"]


@dataclass(frozen=True, slots=True)
class Rest:
    """Generate nothing: the owner needs the machine, it is hot, or the schedule says so. An empty reason: resume."""

    reason: str
    state: RestingState = "resting"


@dataclass(frozen=True, slots=True)
class FinishRequested:
    """Complete the held leases and take no new ones; with an empty reason, take work again.

    Args:
        ends: whether the worker stops once it holds none.
    """

    reason: str
    ends: bool = True


@dataclass(frozen=True, slots=True)
class ActivationChanged:
    """The coordinator gives this worker work, or puts it on standby for this reason; held leases are completed."""

    active: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A signal or the coordinator asks the worker to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """The time named by next_wake_s has come."""


Event = (
    SessionOpened
    | SessionLost
    | LeasesGranted
    | LeasesRevoked
    | VersionAnnounced
    | VersionVerified
    | VersionLoaded
    | VersionReplaced
    | VersionActivated
    | SliceGenerated
    | UploadAnswered
    | UploadFailed
    | Rest
    | FinishRequested
    | ActivationChanged
    | StopRequested
    | Tick
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class RequestWork:
    """Request work for so many free slots; replaces the last request."""

    free_slots: int


@dataclass(frozen=True, slots=True)
class ReportVersionHeld:
    key: VersionKey


@dataclass(frozen=True, slots=True)
class ReturnLeases:
    lease_ids: tuple[LeaseId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LoadVersion:
    """Load a version besides the active one; answered by VersionLoaded or VersionReplaced."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class ActivateVersion:
    """Swap to a loaded version, while no slice is generated; answered by VersionActivated."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class GenerateBatch:
    """Begin a batch of these slots, each after its prefix, and generate a first slice; answered by SliceGenerated."""

    batch_id: int
    work: tuple[SlotWork, ...]
    slice_tokens: int


@dataclass(frozen=True, slots=True)
class ContinueBatch:
    """Generate the next slice of the batch; answered by SliceGenerated.

    Args:
        renew: use the version that is active now, in this way; None: it is in use already.
        more: slots that take the places of rollouts that have ended.
    """

    batch_id: int
    slice_tokens: int
    renew: AtVersionSwap | None = None
    more: tuple[SlotWork, ...] = ()


@dataclass(frozen=True, slots=True)
class EndBatch:
    """Free the engine's memory of a batch that is complete or was given up."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class SendPartials:
    """Send the new tokens of running rollouts to the coordinator."""

    partials: tuple[PartialRollout, ...]


@dataclass(frozen=True, slots=True)
class UploadRollouts:
    """Upload finished rollouts; answered by UploadAnswered or UploadFailed."""

    upload_id: int
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class RolloutsDropped:
    """Log slots or rollouts that were given up; the core has counted them."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Finish:
    """End the worker: the drain is complete."""

    reason: str


Action = (
    RequestWork
    | ReportVersionHeld
    | ReturnLeases
    | LoadVersion
    | ActivateVersion
    | GenerateBatch
    | ContinueBatch
    | EndBatch
    | SendPartials
    | UploadRollouts
    | RolloutsDropped
    | Finish
)
