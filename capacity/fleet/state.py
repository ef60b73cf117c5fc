"""Hold the state of the fleet's manager: settings, restored state, and one slot for each tag that has not ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from capacity.fleet.backoff import PatienceSettings
from capacity.fleet.billing import Terms
from capacity.fleet.budget import Limits
from capacity.fleet.events import FleetAction, Spent
from capacity.providers.base import WorkerTag

Phase = Literal["starting", "joining", "on", "draining", "stopping", "unknown"]
"""``unknown``: an earlier coordinator opened it, and its provider has not yet been seen to run it or to lack it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of the fleet's manager; durations in seconds."""

    run_id: str
    providers: tuple[str, ...]
    limits: Limits = field(default_factory=lambda: Limits(look_every_s=60.0))
    """Limits of the cost; ``look_every_s`` is also the time between two marks, which a crash may leave unrecorded."""
    start_timeout_s: float = 600.0
    """Longest time from a start until the worker's peer joins."""
    drain_timeout_s: float = 15.0
    """Time that a drained peer has to finish, upload and leave."""
    leave_grace_s: float = 130.0
    """Time that a peer has to reconnect after its session ended without a goodbye."""
    stable_s: float = 300.0
    """A worker that ends before it worked for this long counts as failed."""
    patience: PatienceSettings = field(default_factory=PatienceSettings)
    starts_at_once: int = 8
    """Most starts of one provider in progress at once."""
    list_every_s: float = 60.0
    """Time between two lists of what runs at a provider."""
    offers_every_s: float = 900.0
    """Time between two queries of what a provider offers."""
    wanted_grace_s: float = 300.0
    """Time after startup in which the wanted set must arrive, before workers of earlier coordinators are stopped."""


@dataclass(frozen=True, slots=True)
class OpenWorker:
    """A tag that was opened and not closed."""

    tag: WorkerTag
    provider: str
    terms: Terms
    opened_at: float
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """State of the fleet as the journal of earlier coordinators records it.

    Args:
        incarnations: each worker's highest incarnation.
        closed: cost of ended workers, by provider.
        marked: sum of all marks, by provider; only these include the forecast.
        marked_at: when an earlier coordinator last wrote a row; 0: never.
    """

    opened: tuple[OpenWorker, ...] = ()
    incarnations: Mapping[str, int] = field(default_factory=dict)
    closed: Mapping[str, Spent] = field(default_factory=dict)
    marked: Mapping[str, Spent] = field(default_factory=dict)
    marked_at: float = 0.0


@dataclass(slots=True)
class Slot:
    """One life of a worker, from the decision to start it until nothing of it is left.

    Args:
        since: when the phase began.
        up_at: when it was known to run; a list of running workers requested earlier may lack it.
        joined_at: when its peer first joined; None: not yet.
        away_since: when its peer's session ended; None while it has one.
        stop_due: while stopping: when to retry; None while a stop is in progress.
    """

    tag: WorkerTag
    provider: str
    phase: Phase
    since: float
    reason: str = ""
    where: str = ""
    up_at: float = 0.0
    joined_at: float | None = None
    away_since: float | None = None
    stop_due: float | None = None
    stop_failures: int = 0

    @property
    def key(self) -> str:
        return str(self.tag)

    def enter(self, phase: Phase, now: float, reason: str = "") -> None:
        """Enter a phase."""
        self.phase, self.since = phase, now
        self.reason = reason or self.reason


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One slot as screens show it."""

    worker_id: str
    tag: str
    provider: str
    phase: Phase
    reason: str
    where: str
    usd_per_hour: float
    spent_usd: float


Actions = list[FleetAction]
