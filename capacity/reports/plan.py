"""Report a plan: its assumptions, one row per candidate, the totals, and the changes that would make it feasible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from capacity.inputs.pool.checks import filled_line, skipped_lines
from capacity.model.assumptions import Assumption
from capacity.model.units import BYTES_PER_MBIT
from capacity.planner.plans import Candidate, Plan, Row
from capacity.questions.horizon import Forecast, Verdict
from capacity.questions.plan_json import Inputs, totals_of
from capacity.questions.promise import UTILISATION_ENOUGH
from capacity.reports.tables import TICK, Cell, Column, Sheet

ROWS_SHOWN = 40
"""Most rows of the text table; the others are counted. CSV, HTML and JSON have all."""

_CENT_USD = 0.01  # costs are printed in cents
_REASONS_SHOWN = 8  # most reasons under the table: of pinned workers, and of those that no price would make chosen

CANDIDATE_COLUMNS = (
    Column("chosen", "on"),
    Column("worker_id", "worker"),
    Column("hardware", "hardware"),
    Column("region", "region"),
    Column("usd_per_hour", "$/h", 3),
    Column("useful_rollouts_per_second", "rollouts/s", 3),
    Column("concurrency", "at once"),
    Column("t_gen_p90_s", "T_gen p90 s", 0),
    Column("upload_mbit_per_second", "up Mbit/s", 0),
    Column("download_mbit_per_second", "down Mbit/s", 0),
    Column("copies_sent", "passes on", 1),
    Column("worth_usd_per_hour", "net value $/h", 3),
    Column("reason", "why", prose=True),
)
"""``worth_usd_per_hour`` is minus the reduced cost: by how much the worker's contribution exceeds its price."""

_ROW_NAMES = {
    "rate": "rollouts made / needed",
    "relay": "copies that no worker can pass on",
    "learner_uplink": "the origin's uplink",
    "downlink": "the slowest chosen downlink",
    "region": "rate without region",
    "chance": "rate at the required odds",
    "budget": "price",
}


def assumption_sheet(assumptions: Sequence[Assumption]) -> Sheet:
    """Return a table of every figure that the plan rests on, with its source."""
    columns = (
        Column("name", "assumption"),
        Column("value", "value"),
        Column("unit", "unit"),
        Column("uncertainty", "±"),
        Column("source", "source", prose=True),
    )
    rows = tuple(
        (one.name, _figure(one.value), one.unit, _uncertainty(one.relative_uncertainty), one.source)
        for one in assumptions
    )
    return Sheet("assumptions", columns, rows)


def input_lines(inputs: Inputs) -> list[str]:
    """Return lines on what was read, which rows were skipped and why, and what was assumed where rows were empty."""
    lines = [f"pool {inputs.pool}: {inputs.rows - len(inputs.skipped)} of {inputs.rows} rows used"]
    lines += [f"demand {inputs.demand}"]
    lines += skipped_lines(inputs.skipped)
    lines += [f"Filled in {filled_line(one)}." for one in inputs.filled]
    if inputs.defaults:
        lines += [f"Defaults of the demand (docs/capacity.md): {', '.join(inputs.defaults)}."]
    return lines


def candidate_sheet(plan: Plan) -> Sheet:
    """Return a table with a row per candidate: chosen ones first, then by how far each is from being chosen."""
    return Sheet(
        "workers",
        CANDIDATE_COLUMNS,
        tuple(_cells(candidate) for candidate in in_order(plan.candidates)),
        marked=0,
        lines=(*filter(None, [binding_line(plan)]), *totals_lines(plan)),
    )


def short_sheet(plan: Plan, rows_max: int | None = ROWS_SHOWN) -> Sheet:
    """Return the table of candidates for a screen: those alike share a row, and only ``rows_max`` rows are shown.

    The lines under the table have only the reasons that no column shows. ``rows_max`` None shows every row.
    """
    rows: list[tuple[Cell, ...]] = []
    for _, members in groupby(in_order(plan.candidates), key=_likeness):
        alike = list(members)
        rows.append(_shared_cells(alike))
    left_out = rows[rows_max:] if rows_max is not None else []
    reasons = [f"{row[1]}: {row[-1]}" for row in rows if row[-1]]
    lines = [*reasons[:_REASONS_SHOWN], *filter(None, [binding_line(plan)]), *totals_lines(plan)]
    if left_out:
        lines.insert(0, f"… and {len(left_out):,} rows more that are off; --all shows them")
    shown_rows = tuple(row[:-1] for row in rows[:rows_max])
    return Sheet("workers", CANDIDATE_COLUMNS[:-1], shown_rows, marked=0, lines=tuple(lines))


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort candidates: chosen ones first, then those nearest to being chosen, then those that cannot be chosen."""

    def place(candidate: Candidate) -> tuple[bool, bool, float, tuple[Cell, ...], str]:
        off = not candidate.chosen
        return (
            off,
            candidate.barred,
            candidate.reduced_usd_per_hour if off else -candidate.useful_rollouts_per_second,
            tuple(str(cell) for cell in _likeness(candidate)),
            candidate.worker.worker_id,
        )

    return sorted(candidates, key=place)


def totals_lines(plan: Plan) -> tuple[str, ...]:
    """Return lines on the number of workers on, their cost and rate, and the bound that certifies the plan."""
    totals = totals_of(plan)
    if not plan.feasible:
        return (f"0 of {totals.candidates:,} workers: infeasible",)
    return (
        f"{TICK} {totals.chosen:,} of {totals.candidates:,} workers · {plan.usd_per_hour:,.2f} $/h "
        f"(workers {plan.workers_usd_per_hour:,.2f} + traffic {plan.egress_usd_per_hour:,.2f}) · "
        f"whole bill {totals.usd_per_hour:,.2f} $/h, {totals.usd_per_step:,.4f} $/step",
        f"T_bcast {plan.t_bcast_s:,.1f} s · T_gen p90 {plan.t_gen_p90_s:,.1f} s · "
        f"S needed {plan.staleness_needed} of {plan.demand.staleness_limit} · "
        f"{_proof(plan)}",
        _expected_line(plan),
    )


def _expected_line(plan: Plan) -> str:
    """Return what is expected of the run; by rates alone where nothing was predicted."""
    expected = plan.expected
    if expected is None:
        return f"utilisation {plan.utilisation:.1%} by rates alone"
    wasted_usd = plan.usd_per_hour * expected.dropped_share
    return (
        f"expected of the run: utilisation {expected.utilisation:.1%} · dropped {expected.dropped_share:.1%} "
        f"({wasted_usd:,.2f} $/h) · T_bcast p95 {expected.t_bcast_p95_s:,.1f} s · "
        f"mean age {expected.mean_age:.1f} steps"
    )


def bill_sheet(plan: Plan) -> Sheet:
    """Return a table of the whole bill by row, at the pace that is expected."""
    bill = totals_of(plan).bill
    columns = (
        Column("row", "the whole bill"),
        Column("usd_per_hour", "$/h", 3),
        Column("usd_per_step", "$/step", 5),
        Column("share", "share of it %", 1),
    )
    parts = (
        ("workers", bill.workers_usd_per_hour),
        ("traffic", bill.traffic_usd_per_hour),
        ("learner", bill.learner_usd_per_hour),
        ("coordinator", bill.coordinator_usd_per_hour),
        ("storage", bill.storage_usd_per_hour),
        ("in all", bill.usd_per_hour),
    )
    pace, whole = bill.steps_per_hour, bill.usd_per_hour
    rows = tuple(
        (name, usd, usd / pace if pace > 0 else None, 100.0 * usd / whole if whole > 0 else None) for name, usd in parts
    )
    return Sheet("bill", columns, rows)


_SHORT_LINE = "the other sets are mostly predicted by one short run, whose utilisation may be 15 % off"


def slack_sheet(plan: Plan) -> Sheet | None:
    """Return a table of the slacks that were tried, a tick on the plan's; None where nothing was predicted."""
    if plan.expected is None or not plan.expected.trials:
        return None
    columns = (
        Column("chosen", "on"),
        Column("headroom", "rate bought / needed", 2),
        Column("margin_steps", "steps of S left free", 1),
        Column("workers", "workers"),
        Column("utilisation_percent", "utilisation %", 1),
        Column("usd_per_hour", "whole bill $/h", 2),
        Column("usd_per_step", "$/step", 4),
    )
    rows = tuple(
        (
            (one.headroom, one.margin_steps) == (plan.demand.headroom, plan.demand.margin_steps),
            one.headroom,
            one.margin_steps,
            one.workers,
            100.0 * one.utilisation,
            one.usd_per_hour,
            one.usd_per_step,
        )
        for one in plan.expected.trials
    )
    return Sheet("slack, chosen by the whole bill", columns, rows, marked=0, lines=(_slack_line(plan), _SHORT_LINE))


def _slack_line(plan: Plan) -> str:
    if plan.demand.learner_usd_per_hour <= 0:
        return f"the learner has no price: the cheapest set that keeps it busy for {UTILISATION_ENOUGH:.0%} of the time"
    share = plan.demand.learner_usd_per_hour / totals_of(plan).usd_per_hour
    return f"the cheapest learner step; the learner is {share:.0%} of the bill whether it trains or waits"


def _proof(plan: Plan) -> str:
    """Return what is proven about the plan's cost: that it is the least, or how far it is from a bound at most.

    The bound for sets of whole workers is 0 where it is unknown. It counts beside the relaxation's, which a set of few
    workers cannot reach.
    """
    cost = plan.usd_per_hour
    bound = max(plan.lp_bound_usd_per_hour, plan.integer_bound_usd_per_hour)
    if bound >= cost - _CENT_USD / 2.0:
        return f"proven cheapest: {cost:,.2f} $/h"
    return f"no set costs less than {bound:,.2f} $/h, {1.0 - bound / cost:.1%} below this one"


def row_sheet(plan: Plan) -> Sheet:
    """Return a table of the programme's rows at the chosen set, those with the highest shadow price first."""
    columns = (
        Column("row", "limit"),
        Column("subject", "of"),
        Column("value", "value", 3),
        Column("relation", ""),
        Column("limit", "limit", 3),
        Column("unit", "unit"),
        Column("slack", "slack", 3),
        Column("shadow_usd_per_hour", "value of one more unit, $/h", 3),
    )
    ordered = sorted(plan.rows, key=lambda row: -abs(row.shadow_usd_per_hour))
    return Sheet("what limits the set", columns, tuple(_row_cells(row) for row in ordered))


def binding_line(plan: Plan) -> str:
    """Return a line on the row whose limit costs most; empty if no limit costs anything."""
    costly = max(plan.rows, key=lambda row: abs(row.shadow_usd_per_hour), default=None)
    if costly is None or not costly.shadow_usd_per_hour:
        return ""
    factor, unit = _unit(costly)
    name = _ROW_NAMES[costly.name] + (f" {costly.subject}" if costly.subject else "")
    value = abs(costly.shadow_usd_per_hour) / factor
    does = "costs" if costly.at_least else "saves"
    return f"what limits: {name}; one more {unit.replace('rollouts', 'rollout')} {does} {value:,.3f} $/h (`explain`)"


def infeasible_lines(plan: Plan) -> list[str]:
    """Return lines on why no set is feasible and what would help, smallest change first; none for a feasible plan."""
    if plan.infeasible is None:
        return []
    lines = [f"infeasible: {plan.infeasible.what}"]
    if plan.infeasible.remedies:
        lines += ["any one of these makes it feasible, smallest change first:"]
        lines += [f"  - {remedy}" for remedy in plan.infeasible.remedies]
    else:
        lines += ["no single change of S, kappa, uplink, topology, deltas or workers helps"]
    return lines


def _cells(candidate: Candidate) -> tuple[Cell, ...]:
    worker, speed = candidate.worker, candidate.speed
    return (
        candidate.chosen,
        worker.worker_id,
        worker.hardware or worker.name,
        worker.region,
        candidate.usd_per_hour,
        candidate.useful_rollouts_per_second,
        speed.concurrency if speed else None,
        speed.t_gen_p90_s if speed else None,
        worker.upload_bytes_per_second / BYTES_PER_MBIT,
        worker.download_bytes_per_second / BYTES_PER_MBIT,
        candidate.copies_sent if candidate.chosen else None,
        None if candidate.barred else -candidate.reduced_usd_per_hour,
        candidate.reason,
    )


def _likeness(candidate: Candidate) -> tuple[Cell, ...]:
    """Return the cells that candidates must share to be in one row of the table."""
    cells = _cells(candidate)
    return (*cells[:1], family(candidate.worker.worker_id), *cells[2:10])


def family(worker_id: str) -> str:
    """Return the id of the pool's row that a worker comes from: without the number that ``count`` adds."""
    head, dash, number = worker_id.rpartition("-")
    return head if dash and number.isdigit() else worker_id


def _shared_cells(alike: list[Candidate]) -> tuple[Cell, ...]:
    """Return one row for candidates that are alike, its reason without what the columns show already."""
    cells, first = _cells(alike[0]), alike[0]
    name = first.worker.worker_id if len(alike) == 1 else f"{len(alike)} x {family(first.worker.worker_id)}"
    why = first.reason.partition(": ")[2] if first.barred or first.worker.pin else ""
    return (cells[0], name, *cells[2:-1], why)


def _row_cells(row: Row) -> tuple[Cell, ...]:
    relation, (factor, unit) = "≥" if row.at_least else "≤", _unit(row)
    scaled = (row.value * factor, relation, row.limit * factor, unit, row.slack * factor)
    return (_ROW_NAMES[row.name], row.subject, *scaled, row.shadow_usd_per_hour / factor)


def _unit(row: Row) -> tuple[float, str]:
    """Return the factor and the unit in which a row is shown: bytes/s as Mbit/s."""
    return (1 / BYTES_PER_MBIT, "Mbit/s") if row.unit == "bytes/s" else (1.0, row.unit)


def _figure(value: float | int | str | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, int | float) else value


def _uncertainty(share: float | None) -> str:
    return f"{share:.0%}" if share else ""


def verdict_lines(verdict: Verdict | None) -> list[str]:
    """Return lines on a deadline or budget: the figures, and what would keep one that is missed."""
    if verdict is None:
        return []
    if verdict.kept:
        return [f"kept: {verdict.what}"]
    lines = [f"infeasible: {verdict.what}"]
    if verdict.remedies:
        lines.append("any one of these makes it feasible, smallest change first:")
    return lines + [f"  - {remedy}" for remedy in verdict.remedies]


def forecast_sheet(forecast: Forecast, verdict: Verdict | None = None) -> Sheet:
    """Return a table of hours and dollars with their spread, and how likely the deadline and the budget are kept."""
    columns = (
        Column("figure", f"of {forecast.steps:,} learner steps"),
        Column("p10", "p10", 2),
        Column("p50", "median", 2),
        Column("p90", "p90", 2),
    )
    ranges = (
        ("hours", forecast.hours),
        ("$ in all", forecast.usd),
        ("  workers", forecast.workers_usd),
        ("  traffic", forecast.egress_usd),
        ("  learner", forecast.learner_usd),
        ("  coordinator", forecast.coordinator_usd),
        ("  storage", forecast.storage_usd),
        ("learner utilisation", forecast.utilisation),
    )
    rows = tuple((name, one.p10, one.p50, one.p90) for name, one in ranges)
    kept = (("the deadline", forecast.in_time), ("the budget", forecast.in_budget))
    lines = tuple(f"{name} is kept in {share:.0%} of the samples" for name, share in kept if share is not None)
    return Sheet("forecast", columns, rows, lines=(*lines, *verdict_lines(verdict)))
