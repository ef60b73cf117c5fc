"""`rollcast capacity what-if`: plan for every combination of other limits, links and topologies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from capacity.planner.planner import plan as choose
from capacity.planner.plans import Plan
from capacity.questions.scenario import Scenario
from capacity.reports.tables import records_of
from capacity.reports.what_if import (
    Values,
    Variant,
    broadcast_curves,
    cheapest,
    combinations,
    cost_curves,
    listed,
    variant_sheet,
    variants,
)
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, scenario
from rollcast.cli.capacity.output import FEASIBLE, INFEASIBLE, FormatOption, note, print_json, print_sheets, working
from rollcast.cli.options import Settings
from rollcast.runtime.errors import ConfigError

SCHEMA = "rollcast.capacity.what-if/1"


def what_if(
    *,
    pool: PoolOptions | None = None,
    demand: Path | None = None,
    setting: Settings = (),
    staleness: str = "",
    kappa: str = "",
    uplink: str = "",
    topology: str = "",
    encoding: str = "",
    model: str = "",
    headroom: str = "",
    t_train: str = "",
    form: FormatOption = "table",
    plot: Path | None = None,
    plot_broadcast: Path | None = None,
) -> int:
    """Plan for every combination of the given values, and mark the one with the cheapest learner step.

    The exit status is 0 if at least one combination is feasible, and 2 if none is.

    Parameters
    ----------
    demand
        TOML file whose values are varied; the shipped example if not given.
    setting
        Override one setting of the file, as section.key=value. May be repeated.
    staleness
        Values of S, for example 2..16 or 2,4,8.
    kappa
        Learner steps between two versions, for example 1..4.
    uplink
        Upload rates of the origin, for example 500Mbit/s,2.5Gbit/s; bare numbers are in Mbit/s.
    topology
        Topologies, for example stripes=8,stripes=4,tree,star.
    encoding
        Encodings, for example keyframe,delta.
    model
        Models, for example qwen3-4b,qwen3-8b.
    headroom
        Ratios of the rate bought to the rate needed, for example 1.05,1.1,1.5.
    t_train
        Seconds of a learner step, for example 30,60.
    form
        Output format: table, json, csv or html.
    plot
        Plot $/h against S to this .png or .svg file.
    plot_broadcast
        Plot $/step against T_bcast to this .png or .svg file.
    """
    given = {
        "model": model,
        "encoding": encoding,
        "topology": topology,
        "uplink": uplink,
        "kappa": kappa,
        "headroom": headroom,
        "t_train": t_train,
        "staleness": staleness,
    }
    swept = {option: listed(option, text) for option, text in given.items() if text}
    _check(swept.keys(), plot, plot_broadcast)
    every = combinations(swept)
    sources: list[Scenario] = []
    options = DemandOptions(demand=demand, setting=setting)
    with working("planning") as status:

        def plan_for(values: Values) -> Plan:
            status.update(f"planning {len(sources) + 1} of {len(every)} combinations")
            return _planned(values, pool, options, sources)

        found = variants(every, plan_for)
    sheet = variant_sheet(found)
    if form == "json":
        print_json({"schema": SCHEMA, "pool": sources[0].inputs.pool, "variants": records_of(sheet)})
    else:
        note([f"pool {sources[0].inputs.pool}", f"demand {sources[0].inputs.demand}"])
        print_sheets([sheet], form, title="what if")
    _plot(found, sources[0], plot, plot_broadcast)
    return FEASIBLE if cheapest(found) is not None else INFEASIBLE


def _check(swept: object, plot: Path | None, plot_broadcast: Path | None) -> None:
    """Check that a value is varied and that the plots can be drawn, before anything is planned.

    Raises:
        ConfigError: no value is varied, or a plot cannot show what is.
    """
    names = set(swept)  # type: ignore[call-overload]
    if not names:
        raise ConfigError("no value is varied", fix="add for example --staleness 2..16, or --uplink 500,1000")
    for path in filter(None, (plot, plot_broadcast)):
        from rollcast.runtime.charts import check_path

        check_path(path)
    if plot is not None and "staleness" not in names:
        raise ConfigError("--plot shows $/h against S, which is not varied", fix="add for example --staleness 2..16")


def _plot(found: Sequence[Variant], source: Scenario, plot: Path | None, plot_broadcast: Path | None) -> None:
    """Draw the plots that were asked for; matplotlib takes a second to load."""
    subtitle = f"{len(source.workers)} workers in the pool; {source.inputs.model}"
    if plot is not None:
        from capacity.reports.plots import cost_against_staleness

        cost_against_staleness(plot, cost_curves(found), subtitle)
    if plot_broadcast is not None:
        from capacity.reports.plots import cost_against_broadcast

        cost_against_broadcast(plot_broadcast, broadcast_curves(found), subtitle)


def _planned(values: Values, pool: PoolOptions | None, demand: DemandOptions, sources: list[Scenario]) -> Plan:
    """Plan one combination and append its scenario to ``sources``."""
    known = {name: value for name, value in values.items() if name not in ("headroom", "t_train")}
    extra = {"headroom": "demand.headroom", "t_train": "demand.t_train_s"}
    settings = tuple(f"{extra[name]}={value}" for name, value in values.items() if name in extra)
    options = replace(demand, setting=demand.setting + settings, **known)  # type: ignore[arg-type]
    found = scenario(pool, options)
    sources.append(found)
    return choose(found.demand, found.workers)
