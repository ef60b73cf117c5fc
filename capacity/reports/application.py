"""Show what applying a plan would do, and what it has done, as tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from capacity.fleet.overview import FleetOverview
from capacity.questions.application import Application, WorkerStep
from capacity.reports.tables import Column, Sheet

_COLUMNS = (
    Column("step", "step"),
    Column("workers", "workers"),
    Column("provider", "provider"),
    Column("where", "where"),
    Column("usd_per_hour", "$/h each", 4),
    Column("plan_usd_per_hour", "in the plan", 4),
    Column("why", "why", prose=True),
)
_WORDS = {
    "start": "start",
    "runs": "runs already",
    "stop": "stop",
    "keeps": "stays on",
    "cannot": "not by this run",
}


def application_sheet(application: Application, fleet: FleetOverview, *, done: bool = False) -> Sheet:
    """Return one row for workers of the same step, place, price and state that follow one another.

    Args:
        done: whether the steps were carried out rather than only planned.
    """
    rows = []
    for _, members in groupby(application.steps, _alike):
        group = list(members)
        first = group[0]
        rows.append(
            (
                _WORDS[first.step],
                _names(group),
                first.provider,
                first.where,
                first.usd_per_hour,
                first.plan_usd_per_hour if first.price_differs or first.usd_per_hour is None else None,
                first.why,
            )
        )
    title = "The run's workers" if done else "What would be done"
    return Sheet(title, _COLUMNS, tuple(rows), lines=tuple(_totals(application, fleet, done=done)))


def _alike(one: WorkerStep) -> tuple[object, ...]:
    return one.step, one.provider, one.where, one.usd_per_hour, one.plan_usd_per_hour, one.why


def _names(group: list[WorkerStep]) -> str:
    return group[0].worker_id if len(group) == 1 else f"{group[0].worker_id} ... {group[-1].worker_id} ({len(group)})"


def _totals(application: Application, fleet: FleetOverview, *, done: bool) -> Iterable[str]:
    start, stop = application.of("start"), application.of("stop")
    budget = "no limit" if fleet.usd_per_hour_max is None else f"at most {fleet.usd_per_hour_max:.4g} $/h"
    if not done:
        keeps = len(application.of("keeps"))
        yield f"{len(start)} to start for {application.started_usd_per_hour:.4g} $/h, {len(stop)} to stop"
        if keeps:
            yield f"{keeps} outside the plan stay on; --stop-others stops them"
    if cannot := application.of("cannot"):
        yield f"{len(cannot)} of the plan's workers are not started by this run"
    yield f"now {fleet.usd_per_hour:.4g} $/h ({budget}), {fleet.spent_usd:.4g} $ spent so far"
