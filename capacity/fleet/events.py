"""What the fleet's manager is told, and what it asks for. Times come with handle(event, now), never inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from capacity.fleet.billing import Terms
from capacity.providers.base import Listing, Offer, WorkerTag


@dataclass(frozen=True, slots=True)
class OffersSeen:
    """What a provider offers now, in place of what it offered before."""

    provider: str
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class WorkersWanted:
    """The whole set of workers that should run, by worker id, each with the reason for it."""

    reasons: Mapping[str, str]
    forecast_usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    """What the plan expects each to cost, egress included; its offered price where it is not named."""


@dataclass(frozen=True, slots=True)
class StartSucceeded:
    tag: WorkerTag
    where: str


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The provider refused, or did not answer: something may run all the same."""

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
    """What runs of this run at a provider. ``asked_at``: what was started after that need not be in it."""

    provider: str
    listing: Listing
    asked_at: float


@dataclass(frozen=True, slots=True)
class ListFailed:
    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """Its peer has a session with the coordinator."""

    tag: WorkerTag


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """Its peer's session ended. ``finished``: it said that it will not come back."""

    tag: WorkerTag
    finished: bool


@dataclass(frozen=True, slots=True)
class BytesSent:
    """What peers have sent since they were started, by their own count and by tag."""

    sent_bytes: Mapping[WorkerTag, int]


@dataclass(frozen=True, slots=True)
class RunOver:
    """The run is over for good: everybody is stopped, nobody is started."""

    reason: str


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    """What all workers may cost is limited anew; None: no limit. What runs beyond it is stopped, the dearest first."""

    usd_per_hour_max: float | None
    usd_max: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


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
    """Write down durably that this tag is about to be started. Nothing may be started before that is done."""

    tag: WorkerTag
    provider: str
    terms: Terms
    opened_at: float


@dataclass(frozen=True, slots=True)
class RecordClosed:
    """Nothing runs under this tag any more, and its clock has stopped."""

    tag: WorkerTag
    provider: str
    ended_at: float
    machine_usd: float
    egress_usd: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What a provider's workers cost since the last mark, and what was expected."""

    machine_usd: float
    egress_usd: float
    forecast_usd: float


@dataclass(frozen=True, slots=True)
class RecordMark:
    """The money of the time since the last mark, by provider, and what each open worker has sent in all."""

    at: float
    spent: Mapping[str, Spent]
    sent_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Make an invite and start; answered by StartSucceeded or StartFailed."""

    tag: WorkerTag
    provider: str


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Tell its peer to finish, upload and leave; answered by WorkerLeft."""

    tag: WorkerTag
    reason: str


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Stop it at its provider; answered by StopSucceeded or StopFailed."""

    tag: WorkerTag
    provider: str


@dataclass(frozen=True, slots=True)
class ListWorkers:
    """Ask a provider what runs; answered by WorkersListed or ListFailed."""

    provider: str


@dataclass(frozen=True, slots=True)
class AskOffers:
    """Ask a provider what it offers; answered by OffersSeen, or by nothing."""

    provider: str


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the run's story."""

    kind: str
    subject: str
    detail: str


FleetAction = (
    RecordOpened | RecordClosed | RecordMark | StartWorker | DrainWorker | StopWorker | ListWorkers | AskOffers | Note
)
