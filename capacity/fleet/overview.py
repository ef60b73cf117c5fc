"""Describe a run's fleet to those who ask it for workers: everything on offer, and what became of each worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from capacity.fleet.fleet import FleetManager
from capacity.fleet.state import Phase

WorkerState = Literal["off", "waiting", "starting", "on", "stopping", "failed", "refused"]
"""``waiting``: others are started first. ``failed``: its last start failed; it is retried. ``refused``: the budget or
its provider does not allow it now."""

_STATES: Mapping[Phase, WorkerState] = {
    "starting": "starting",
    "joining": "starting",
    "unknown": "starting",
    "on": "on",
    "draining": "stopping",
    "stopping": "stopping",
}


@dataclass(frozen=True, slots=True)
class OfferedWorker:
    """One worker that is on offer or runs.

    Args:
        wanted: whether the run wants it now.
        why: why it is in that state, in words; empty where there is nothing to add.
        where: the process, host or cluster that it runs in; empty while it does not.
    """

    worker_id: str
    provider: str
    usd_per_hour: float
    state: WorkerState
    wanted: bool
    why: str
    where: str
    spent_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOverview:
    """A run's fleet.

    Args:
        want: what decides which workers run: ``apply``, ``plan`` or ``all``; empty: the run has no pool.
        offers_known: whether every provider has reported its offers.
        start_timeout_s: seconds within which a started worker must join.
        usd_per_hour, spent_usd: of all workers; limits of None: no limit.
    """

    want: str
    offers_known: bool
    start_timeout_s: float
    usd_per_hour: float
    usd_per_hour_max: float | None
    spent_usd: float
    usd_max: float | None
    workers: tuple[OfferedWorker, ...]


NO_FLEET = FleetOverview(
    want="",
    offers_known=False,
    start_timeout_s=0.0,
    usd_per_hour=0.0,
    usd_per_hour_max=None,
    spent_usd=0.0,
    usd_max=None,
    workers=(),
)


def overview_of(manager: FleetManager, wanted: frozenset[str], *, want: str, offers_known: bool) -> FleetOverview:
    """Return the overview of a fleet.

    Args:
        wanted: ids of the workers that should run, which the manager may not have been told yet.
    """
    running = {view.worker_id: view for view in manager.workers()}
    prices = {one.worker.worker_id: (one.worker.provider, one.worker.usd_per_hour) for one in manager.offers}
    prices |= {one: (view.provider, view.usd_per_hour) for one, view in running.items() if one not in prices}
    rows = []
    for worker_id, (provider, usd_per_hour) in prices.items():
        view = running.get(worker_id)
        state, why = _state_of(manager, worker_id, view.phase if view else None, wanted=worker_id in wanted)
        rows.append(
            OfferedWorker(
                worker_id,
                provider,
                usd_per_hour,
                state,
                worker_id in wanted,
                why or (view.reason if view else ""),
                view.where if view else "",
                view.spent_usd if view else 0.0,
            )
        )
    budget = manager.budget
    return FleetOverview(
        want=want,
        offers_known=offers_known,
        start_timeout_s=manager.settings.start_timeout_s,
        usd_per_hour=budget.usd_per_hour,
        usd_per_hour_max=budget.limits.usd_per_hour_max,
        spent_usd=budget.spent_usd,
        usd_max=budget.limits.usd_max,
        workers=tuple(rows),
    )


def _state_of(manager: FleetManager, worker_id: str, phase: Phase | None, *, wanted: bool) -> tuple[WorkerState, str]:
    """Return a worker's state and why; the reason is empty where the manager's own words for the slot hold."""
    failure, refusal = manager.failures.get(worker_id, ""), manager.held_back.get(worker_id, "")
    if wanted and failure and (phase in ("draining", "stopping") or (phase is None and refusal)):
        return "failed", failure
    if phase is not None:
        return _STATES[phase], ""
    if not wanted:
        return "off", ""
    return ("refused", refusal) if refusal and refusal != manager.QUEUED else ("waiting", refusal)
