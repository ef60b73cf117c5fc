"""`rollcast capacity replan`: plan again from an earlier plan, or follow that plan through a record of events."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from capacity.model.units import SECONDS_PER_HOUR
from capacity.planner.planner import PlanOptions
from capacity.planner.planner import plan as choose
from capacity.questions.plan_json import PlanDocument, document_of, encode, read_plan
from capacity.questions.promise import expecting
from capacity.replan.event_files import Gone, pool_events, read_events
from capacity.replan.events import ReplanSettings
from capacity.reports.plan_diff import diff_sheets, difference
from capacity.reports.replan import Followed, follow, subtitle, switch_sheet, totals_json, with_incumbents
from capacity.reports.tables import records_of
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, now, scenario
from rollcast.cli.capacity.output import (
    CHANGED,
    FEASIBLE,
    INFEASIBLE,
    FormatOption,
    note,
    print_json,
    print_sheets,
    working,
)
from rollcast.cli.capacity.plan import show
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.version import software_version

SCHEMA = "rollcast.capacity.replan/1"


def replan(
    *,
    before: Annotated[Path, Parameter(name="--from")],
    events: Path | None = None,
    pool: PoolOptions | None = None,
    demand: DemandOptions | None = None,
    discount: float = 0.15,
    dwell_s: float = 300.0,
    start_s: float = 180.0,
    hours: float | None = None,
    form: FormatOption = "table",
    plot: Path | None = None,
) -> int:
    """Plan again from an earlier plan. Workers that are on count as cheaper, so that only worthwhile changes are made.

    The exit status is 0 if the same workers are on, 3 if not, and 2 if no set of workers is sufficient any more.

    Parameters
    ----------
    before
        The plan in force, which `rollcast capacity plan --out` saved.
    events
        File of JSON lines with the arrivals, departures, and changes of price and speed since; the plan is followed
        through them.
    discount
        Share of its price by which a worker that is on counts as cheaper; with --events what a start costs in an hour
        is added.
    dwell_s
        Minimum seconds for which a started worker stays on; with --events.
    start_s
        Seconds from a worker's start to its first rollouts, without those in which it receives the base of adapters or
        the keyframe before deltas, which follow from its downlink; with --events.
    hours
        Hours for which the plan is followed; by default until an hour after the last event.
    form
        Output format: table, json, csv (switched workers only) or html.
    plot
        Plot a timeline of the replay to this .png or .svg file; with --events.
    """
    if not 0 <= discount < 1:
        raise ConfigError(
            f"--discount {discount} is out of range", fix="use a share from 0 to below 1, for example 0.2"
        )
    document = read_plan(before)
    if events is not None:
        return follow_events(
            document, events, discount=discount, dwell_s=dwell_s, start_s=start_s, hours=hours, form=form, plot=plot
        )
    if plot is not None:
        raise ConfigError("--plot needs a replay to plot", fix="add --events FILE")
    with working("planning again"):
        after = _plan_again(document, pool, demand, discount)
    diff = difference(document, after)
    if form == "json":
        print_json({"schema": SCHEMA, "set_changed": diff.set_changed, "diff": asdict(diff)} | _plan_json(after))
    elif not after.plan.feasible:
        show(after, form)
    else:
        note([f"Planned again; workers that are on count as {discount:.0%} cheaper."])
        print_sheets(diff_sheets(diff), form, title="replan")
    if not after.plan.feasible:
        return INFEASIBLE
    return CHANGED if diff.set_changed else FEASIBLE


def _plan_again(
    document: PlanDocument, pool: PoolOptions | None, demand: DemandOptions | None, discount: float
) -> PlanDocument:
    """Plan again with the pool and demand that the options name, or with those of the plan."""
    options = PlanOptions(incumbent_discount=discount)
    if pool is None and demand is None:
        workers = with_incumbents(document.plan, [one.worker for one in document.plan.candidates])
        made = choose(document.plan.demand, workers, options)
        inputs, assumptions, machines = document.inputs, document.assumptions, document.machines
    else:
        asked = scenario(pool, demand)
        workers = with_incumbents(document.plan, asked.workers)
        made = choose(asked.demand, workers, options)
        inputs, assumptions, machines = asked.inputs, asked.assumptions, asked.machines
    return document_of(
        expecting(made),  # as the plan before states it
        inputs=inputs,
        assumptions=assumptions,
        software=software_version(),
        made_at=now(),
        machines=machines,
    )


def _plan_json(document: PlanDocument) -> dict[str, object]:
    import json

    return {"document": json.loads(encode(document))}


REPLAY_SCHEMA = "rollcast.capacity.replay/1"


def follow_events(
    document: PlanDocument,
    events: Path,
    *,
    discount: float,
    dwell_s: float,
    start_s: float,
    hours: float | None,
    form: FormatOption,
    plot: Path | None,
) -> int:
    """Replay the events, print every decision, and plot a timeline to ``plot`` unless it is None."""
    if plot is not None:
        from rollcast.runtime.charts import check_path

        check_path(plot)
    lines = read_events(events)
    demand, workers = document.plan.demand, [one.worker for one in document.plan.candidates]
    until_s = hours * SECONDS_PER_HOUR if hours is not None else (lines[-1].at_s if lines else 0.0) + SECONDS_PER_HOUR
    settings = ReplanSettings(incumbent_discount=discount, dwell_s=dwell_s, start_s=start_s)
    listed = list(pool_events(demand, workers, lines, str(events)))
    with working(f"following the plan through {len(listed)} events"):
        followed = follow(listed, settings, start_s=start_s, until_s=until_s)
    gone = [(line.at_s, line.worker_id) for line in lines if isinstance(line, Gone) and line.at_s <= until_s]
    sheet = switch_sheet(followed, gone)
    if form == "json":
        print_json({"schema": REPLAY_SCHEMA, "totals": totals_json(followed), "decisions": records_of(sheet)})
    else:
        print_sheets([sheet], form, title="replay")
    if plot is not None:
        _plot(plot, document, followed)
    return CHANGED if followed.switches_later else FEASIBLE


def _plot(plot: Path, document: PlanDocument, followed: Followed) -> None:
    from capacity.reports.plots import timeline

    timeline(plot, followed.moments, subtitle(document.plan.demand, followed))
