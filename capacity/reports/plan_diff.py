"""Compare two plans: what was asked for, which workers are on, and what they cost and give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from capacity.model.demand import Demand
from capacity.planner.plans import Candidate, Plan
from capacity.questions.plan_json import PlanDocument, Totals
from capacity.reports.tables import Column, Sheet


@dataclass(frozen=True, slots=True)
class Change:
    """A figure that differs between two plans, as text."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Switched:
    """A worker that is on in only one of two plans.

    Args:
        on: whether it is on in the second plan.
        reason: the second plan's reason, or that the worker is no longer in the pool.
    """

    worker_id: str
    on: bool
    reason: str


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The difference between two plans.

    Args:
        demand, totals: figures that differ.
        switched: workers that are on in only one of the plans.
        joined, left: ids of workers that are only in the second plan's pool, and of those only in the first's.
    """

    demand: tuple[Change, ...]
    totals: tuple[Change, ...]
    switched: tuple[Switched, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def set_changed(self) -> bool:
        """Whether the plans differ in the workers that are on."""
        return bool(self.switched)


def difference(before: PlanDocument, after: PlanDocument) -> PlanDiff:
    """Return what changes from the plan ``before`` to the plan ``after``."""
    first, second = _by_id(before.plan), _by_id(after.plan)
    return PlanDiff(
        demand=tuple(_changes(_figures(before.plan.demand), _figures(after.plan.demand))),
        totals=tuple(_changes(_totals(before.totals), _totals(after.totals))),
        switched=tuple(_switched(first, second)),
        joined=tuple(sorted(second.keys() - first.keys())),
        left=tuple(sorted(first.keys() - second.keys())),
    )


def diff_sheets(diff: PlanDiff) -> list[Sheet]:
    """Return the difference as tables: figures that differ, then the workers that were switched."""
    columns = (Column("name", "what"), Column("before", "before"), Column("after", "after"))
    demand = Sheet("requested", columns, tuple((one.name, one.before, one.after) for one in diff.demand))
    totals = Sheet("result", columns, tuple((one.name, one.before, one.after) for one in diff.totals))
    rows = tuple((one.worker_id, "on" if one.on else "off", one.reason) for one in diff.switched)
    on = sum(one.on for one in diff.switched)
    line = f"{on} switched on, {len(diff.switched) - on} off; {len(diff.joined)} new in the pool, {len(diff.left)} gone"
    heads = (Column("worker_id", "worker"), Column("now", "now"), Column("reason", "why", prose=True))
    last = Sheet("switched", heads, rows, lines=(line,))
    return [sheet for sheet in (demand, totals) if sheet.rows] + [last]


def _by_id(plan: Plan) -> dict[str, Candidate]:
    return {candidate.worker.worker_id: candidate for candidate in plan.candidates}


def _switched(before: Mapping[str, Candidate], after: Mapping[str, Candidate]) -> list[Switched]:
    switched = []
    for worker_id in sorted(before.keys() | after.keys()):
        old, new = before.get(worker_id), after.get(worker_id)
        was_on, is_on = old is not None and old.chosen, new is not None and new.chosen
        if was_on != is_on:
            switched.append(
                Switched(worker_id, is_on, new.reason if new is not None else "it is no longer in the pool")
            )
    return switched


def _figures(demand: Demand) -> dict[str, str]:
    return {one.name: str(getattr(demand, one.name)) for one in fields(demand)}


def _totals(totals: Totals) -> dict[str, str]:
    return {
        "$/h": f"{totals.usd_per_hour:,.2f}",
        "$/step": f"{totals.usd_per_step:,.3f}",
        "T_bcast s": f"{totals.t_bcast_s:,.1f}",
        "S needed": str(totals.staleness_needed),
        "utilisation": f"{totals.utilisation:.1%}",
        "workers on": f"{totals.chosen:,} of {totals.candidates:,}",
    }


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    return [Change(name, before[name], after[name]) for name in before if before[name] != after[name]]
