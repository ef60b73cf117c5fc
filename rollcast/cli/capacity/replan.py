"""`rollcast capacity replan`: plan again with the plan's own workers on, or follow it through a record of events.

A plan followed through a record of events, for `rollcast capacity replan --events`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from capacity.model.units import SECONDS_PER_HOUR
from capacity.planner.planner import PlanOptions
from capacity.planner.planner import plan as choose
from capacity.questions.plan_json import PlanDocument, document_of, encode, read_plan
from capacity.replan.event_files import Gone, pool_events, read_events
from capacity.replan.events import ReplanSettings
from capacity.reports.plan_diff import diff_sheets, difference
from capacity.reports.replan import Followed, follow, subtitle, switch_sheet, totals_json, with_incumbents
from capacity.reports.tables import records_of
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, now, scenario
from rollcast.cli.capacity.output import CHANGED, FEASIBLE, INFEASIBLE, FormatOption, note, print_json, print_sheets
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
    discount: float = 0.3,
    dwell_s: float = 300.0,
    start_s: float = 180.0,
    hours: float | None = None,
    form: FormatOption = "table",
    plot: Path | None = None,
) -> int:
    """Plan again from a plan: workers that are on count as cheaper, so that only what pays is changed.

    Exit status 0: the same workers are on; 3: others are; 2: there is no set any more.

    Parameters
    ----------
    before
        the plan in force, as `rollcast capacity plan --format json` writes it.
    events
        JSON lines of what came, went, and changed its price or its speed since: the plan is followed through them.
    discount
        share of the price of a worker that is on that does not count.
    dwell_s
        seconds that a worker stays on once it was started; with --events.
    start_s
        seconds from a worker's start to its first rollouts; with --events.
    hours
        how long the plan is followed; to an hour after the last event if not given.
    form
        table, json, csv (what was switched) or html.
    plot
        draw a timeline of the replay into this .png or .svg file; with --events.
    """
    if not 0 <= discount < 1:
        raise ConfigError(f"--discount is {discount}", fix="give a share from 0 to below 1, for example 0.3")
    document = read_plan(before)
    if events is not None:
        return follow_events(
            document, events, discount=discount, dwell_s=dwell_s, start_s=start_s, hours=hours, form=form, plot=plot
        )
    if plot is not None:
        raise ConfigError("--plot draws a replay, and there is none", fix="add --events FILE")
    after = _again(document, pool, demand, discount)
    diff = difference(document, after)
    if form == "json":
        print_json({"schema": SCHEMA, "set_changed": diff.set_changed, "diff": asdict(diff)} | _plan_json(after))
    elif not after.plan.feasible:
        show(after, form)
    else:
        note([f"planned again with workers that are on {discount:.0%} cheaper"])
        print_sheets(diff_sheets(diff), form, title="replan")
    if not after.plan.feasible:
        return INFEASIBLE
    return CHANGED if diff.set_changed else FEASIBLE


def _again(
    document: PlanDocument, pool: PoolOptions | None, demand: DemandOptions | None, discount: float
) -> PlanDocument:
    """Without options the plan's own pool and demand count; with them, those that they name."""
    options = PlanOptions(incumbent_discount=discount)
    if pool is None and demand is None:
        workers = with_incumbents(document.plan, [one.worker for one in document.plan.candidates])
        made, inputs, assumptions = (
            choose(document.plan.demand, workers, options),
            document.inputs,
            document.assumptions,
        )
    else:
        asked = scenario(pool, demand)
        workers = with_incumbents(document.plan, asked.workers)
        made, inputs, assumptions = choose(asked.demand, workers, options), asked.inputs, asked.assumptions
    return document_of(made, inputs=inputs, assumptions=assumptions, software=software_version(), made_at=now())


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
    """Replay, print every decision, and draw a timeline if one is asked for."""
    if plot is not None:
        from rollcast.runtime.charts import check_path

        check_path(plot)
    lines = read_events(events)
    demand, workers = document.plan.demand, [one.worker for one in document.plan.candidates]
    until_s = hours * SECONDS_PER_HOUR if hours is not None else (lines[-1].at_s if lines else 0.0) + SECONDS_PER_HOUR
    settings = ReplanSettings(incumbent_discount=discount, dwell_s=dwell_s)
    told = list(pool_events(demand, workers, lines, str(events)))
    followed = follow(told, settings, start_s=start_s, until_s=until_s)
    gone = [(line.at_s, line.worker_id) for line in lines if isinstance(line, Gone) and line.at_s <= until_s]
    sheet = switch_sheet(followed, gone)
    if form == "json":
        print_json({"schema": REPLAY_SCHEMA, "totals": totals_json(followed), "decisions": records_of(sheet)})
    else:
        print_sheets([sheet], form, title="replay")
    if plot is not None:
        _draw(plot, document, followed)
    return CHANGED if followed.switches_later else FEASIBLE


def _draw(plot: Path, document: PlanDocument, followed: Followed) -> None:
    from capacity.reports.plots import timeline

    timeline(plot, followed.moments, subtitle(document.plan.demand, followed))
