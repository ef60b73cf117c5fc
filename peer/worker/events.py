"""What the worker's core is told, and what it asks its shell to do. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollcast.wire.ids import Epoch, LeaseId, Version
from rollcast.wire.rollouts import FinishReason, LeaseGrant, PartialRollout, Rollout, Segment, Slot


@dataclass(frozen=True, slots=True, order=True)
class VersionKey:
    """A version of the run. Versions go on rising across epochs: a new epoch's first is above all that were."""

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
class DrawnTokens:
    """What a slice added to one rollout. ``segment`` is None where it only ended."""

    lease_id: LeaseId
    sample_index: int
    segment: Segment | None
    finish_reason: FinishReason | None  # None: it goes on


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The coordinator welcomed us (again), and said how it wants us to work."""

    held_batches: float = 2.0  # generation batches that we may hold slots for
    partial_interval_s: float = 0.0  # between partial results of a running rollout; 0: none are sent
    continue_across_versions: bool = False  # swap between two slices; else between two batches


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
class VersionHeardOf:
    """A verified announcement came; the bytes may follow."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class VersionVerified:
    """A version is complete on disk and its state hash matched."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class VersionLoaded:
    """The engine holds it beside the active one."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class VersionActivated:
    key: VersionKey


@dataclass(frozen=True, slots=True)
class SliceDrawn:
    """A GenerateBatch or DrawOn is done. Rollouts to which nothing happened may be left out."""

    batch_id: int
    drawn: tuple[DrawnTokens, ...]


@dataclass(frozen=True, slots=True)
class UploadAnswered:
    """``retry_after_s`` is the jittered wait before what was not taken is sent again."""

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
    """The owner wants the machine, or it is hot, or it is not the hour: draw nothing. An empty reason: go on."""

    reason: str
    state: RestingState = "resting"


@dataclass(frozen=True, slots=True)
class FinishRequested:
    """Complete what is held and take nothing new; an empty reason: take work again. ``ends``: once nothing is held."""

    reason: str
    ends: bool = True


@dataclass(frozen=True, slots=True)
class ActivationTold:
    """The coordinator gives us work, or does not, for this reason: we go on with what we hold, and are ready."""

    active: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """By a signal or by the coordinator."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """The time named by next_wake_s has come."""


Event = (
    SessionOpened
    | SessionLost
    | LeasesGranted
    | LeasesRevoked
    | VersionHeardOf
    | VersionVerified
    | VersionLoaded
    | VersionActivated
    | SliceDrawn
    | UploadAnswered
    | UploadFailed
    | Rest
    | FinishRequested
    | ActivationTold
    | StopRequested
    | Tick
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class RequestWork:
    """Tell the coordinator how many slots we can still take; replaces what we said before."""

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
    """Answered by VersionLoaded."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class ActivateVersion:
    """Only asked for while no slice is drawn; answered by VersionActivated."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class GenerateBatch:
    """Begin with these slots, each after its prefix, and draw a first slice; answered by SliceDrawn."""

    batch_id: int
    work: tuple[SlotWork, ...]
    slice_tokens: int


@dataclass(frozen=True, slots=True)
class DrawOn:
    """Draw the next slice of the batch; answered by SliceDrawn. ``renew``: with the version active now.

    ``more`` takes the places of rollouts that have ended.
    """

    batch_id: int
    slice_tokens: int
    renew: bool = False
    more: tuple[SlotWork, ...] = ()


@dataclass(frozen=True, slots=True)
class EndBatch:
    """The batch is over, drawn to its end or not: what it holds can be freed."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class SendPartials:
    """Tell the coordinator what running rollouts have drawn."""

    partials: tuple[PartialRollout, ...]


@dataclass(frozen=True, slots=True)
class UploadRollouts:
    """Answered by UploadAnswered or UploadFailed."""

    upload_id: int
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class RolloutsDropped:
    """Slots or rollouts given up, for the log; the core has counted them."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Drained: say goodbye and end."""

    reason: str


Action = (
    RequestWork
    | ReportVersionHeld
    | ReturnLeases
    | LoadVersion
    | ActivateVersion
    | GenerateBatch
    | DrawOn
    | EndBatch
    | SendPartials
    | UploadRollouts
    | RolloutsDropped
    | Finish
)
