"""Define the events and actions of the fleet's manager. Times come with handle(event, now), never inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from capacity.fleet.billing import Terms
from capacity.providers.base import Listing, Offer, WorkerTag


@dataclass(frozen=True, slots=True)
class OffersSeen:
    """A provider's offers, which replace its earlier ones."""

    provider: str
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class WorkersWanted:
    """The whole set of workers that should run, by worker id, each with the reason for it."""

    reasons: Mapping[str, str]
    forecast_usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    """The cost of each worker that the plan expects, egress included; one that is absent costs its offered price."""


@dataclass(frozen=True, slots=True)
class StartSucceeded:
    tag: WorkerTag
    where: str


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The provider refused, or did not answer; the worker may be running nevertheless."""

    tag: WorkerTag
    reason: str


@dataclass(frozen=True, slots=True)
class StopSucceeded:
    tag: WorkerTag


@dataclass(frozen=True, slots=True)
class StopFailed:
    tag: WorkerTag
    reason: str


@dataclass(frozen=True, slots=True)
class WorkersListed:
    """The workers of this run at a provider; those started after ``asked_at`` may be missing."""

    provider: str
    listing: Listing
    asked_at: float


@dataclass(frozen=True, slots=True)
class ListFailed:
    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker's peer has a session with the coordinator."""

    tag: WorkerTag


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker's session ended. ``finished``: the peer reported that it will not return."""

    tag: WorkerTag
    finished: bool


@dataclass(frozen=True, slots=True)
class BytesSent:
    """Bytes that peers have sent since their start, by tag, by their own count."""

    sent_bytes: Mapping[WorkerTag, int]


@dataclass(frozen=True, slots=True)
class RunOver:
    """The run is over for good: stop all workers and start none."""

    reason: str


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    """New limits of the fleet's cost; None: no limit. Workers beyond the limits are stopped, the dearest first."""

    usd_per_hour_max: float | None
    usd_max: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the manager checks its budget, retries and timeouts."""


FleetEvent = (
    OffersSeen
    | WorkersWanted
    | StartSucceeded
    | StartFailed
    | StopSucceeded
    | StopFailed
    | WorkersListed
    | ListFailed
    | WorkerJoined
    | WorkerLeft
    | BytesSent
    | RunOver
    | LimitsChanged
    | Tick
)


@dataclass(frozen=True, slots=True)
class RecordOpened:
    """Record durably that this tag is about to be started; nothing may be started before that is done."""

    tag: WorkerTag
    provider: str
    terms: Terms
    opened_at: float


@dataclass(frozen=True, slots=True)
class RecordClosed:
    """Record that nothing runs under this tag any more; its clock has stopped."""

    tag: WorkerTag
    provider: str
    ended_at: float
    machine_usd: float
    egress_usd: float


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a provider's workers since the last mark, and the cost that was expected."""

    machine_usd: float
    egress_usd: float
    forecast_usd: float


@dataclass(frozen=True, slots=True)
class RecordMark:
    """Record the cost since the last mark, by provider, and the total bytes that each open worker has sent."""

    at: float
    spent: Mapping[str, Spent]
    sent_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Make an invite and start the worker; answered by StartSucceeded or StartFailed."""

    tag: WorkerTag
    provider: str


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Ask the worker's peer to finish, upload and leave; answered by WorkerLeft."""

    tag: WorkerTag
    reason: str


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Stop the worker at its provider; answered by StopSucceeded or StopFailed."""

    tag: WorkerTag
    provider: str


@dataclass(frozen=True, slots=True)
class ListWorkers:
    """Ask a provider which workers run; answered by WorkersListed or ListFailed."""

    provider: str


@dataclass(frozen=True, slots=True)
class AskOffers:
    """Ask a provider for its offers; answered by OffersSeen, or not at all."""

    provider: str


@dataclass(frozen=True, slots=True)
class Note:
    """One line for the run's event log."""

    kind: str
    subject: str
    detail: str


FleetAction = (
    RecordOpened | RecordClosed | RecordMark | StartWorker | DrainWorker | StopWorker | ListWorkers | AskOffers | Note
)
