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
"""unknown: opened by a coordinator before us, and not yet found or missed at its provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of the fleet's manager; durations in seconds."""

    run_id: str
    providers: tuple[str, ...]
    limits: Limits = field(default_factory=lambda: Limits(look_every_s=60.0))
    """Its ``look_every_s`` is also the time between two marks: what a crash may leave unrecorded."""
    start_timeout_s: float = 600.0
    """From a start until its peer joins."""
    drain_timeout_s: float = 15.0
    """For a peer to finish, upload and leave."""
    leave_grace_s: float = 130.0
    """For a peer that went without a goodbye to come back."""
    stable_s: float = 300.0
    """A worker that is gone before so long counts as failed."""
    patience: PatienceSettings = field(default_factory=PatienceSettings)
    starts_at_once: int = 8
    """Of one provider."""
    list_every_s: float = 60.0
    """Between two looks at what runs at a provider."""
    offers_every_s: float = 900.0
    """Between two looks at what a provider offers."""
    told_grace_s: float = 300.0
    """For whoever decides to say what is wanted, before workers that a coordinator before us left are stopped."""


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
    """What the journal of earlier coordinators says.

    Args:
        incarnations: the greatest one of each worker.
        closed: what ended workers cost, by provider; ``marked``: what marks hold, by provider. Forecast in the latter.
        marked_at: when one of them last wrote anything; 0: never.
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
        up_at: when it was known to run; a list of what runs that was asked for before may lack it.
        joined_at: when its peer first joined; None: not yet.
        away_since: None while its peer has a session.
        stop_due: while stopping: when to try again; None while a stop is under way.
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
    """One slot for screens."""

    worker_id: str
    tag: str
    provider: str
    phase: Phase
    reason: str
    where: str
    usd_per_hour: float
    spent_usd: float


Actions = list[FleetAction]
