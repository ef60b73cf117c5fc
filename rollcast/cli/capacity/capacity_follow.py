"""A plan followed through a record of events, for `rollcast capacity replan --events`."""

from __future__ import annotations

from pathlib import Path

from capacity.model.units import SECONDS_PER_HOUR
from capacity.questions.plan_json import PlanDocument
from capacity.replan.event_files import Gone, pool_events, read_events
from capacity.replan.events import ReplanSettings
from capacity.reports.replan import Followed, follow, subtitle, switch_sheet, totals_json
from capacity.reports.tables import records_of
from rollcast.cli.capacity.output import CHANGED, FEASIBLE, FormatOption, print_json, print_sheets

SCHEMA = "rollcast.capacity.replay/1"


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
        from capacity.reports.plots import check_path

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
        print_json({"schema": SCHEMA, "totals": totals_json(followed), "decisions": records_of(sheet)})
    else:
        print_sheets([sheet], form, title="replay")
    if plot is not None:
        _draw(plot, document, followed)
    return CHANGED if followed.switches_later else FEASIBLE


def _draw(plot: Path, document: PlanDocument, followed: Followed) -> None:
    from capacity.reports.plots import timeline

    timeline(plot, followed.moments, subtitle(document.plan.demand, followed))
