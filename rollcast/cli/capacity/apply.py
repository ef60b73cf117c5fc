"""`rollcast capacity apply`: start what a plan chose, through the providers of a run, or write files that start it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from capacity.emit.files import Tool, files_for, write_files
from capacity.fleet.overview import FleetOverview, OfferedWorker
from capacity.questions.application import Application, application_of
from capacity.questions.plan_json import PlanDocument, read_plan
from capacity.reports.application import application_sheet
from rollcast.cli.capacity.output import CHANGED, FEASIBLE, INFEASIBLE, note, print_json, print_sheets
from rollcast.cli.coordinator_api import Target, fetch_sync, post_sync
from rollcast.cli.durations import in_words, seconds_of
from rollcast.cli.options import THIS_RUN, Json, RunOptions
from rollcast.runtime.errors import ConfigError, MalformedMessage, RunFolderError

SCHEMA, EMIT_SCHEMA = "rollcast.capacity.apply/1", "rollcast.capacity.emit/1"
ACT_TIMEOUT_S = 30.0
POLL_S = 1.0
OFFERS_TIMEOUT_S = 60.0
_BEYOND_START_S = 60.0
_LEFT_OUT_SHOWN = 5
_SETTLED = ("on", "failed", "refused")

Flag = Annotated[bool, Parameter(negative=())]


def apply(
    plan: Path,
    *,
    yes: Flag = False,
    stop_others: Flag = False,
    timeout: str = "",
    emit: Tool | None = None,
    into: Path | None = None,
    run: RunOptions = THIS_RUN,
    json_output: Json = False,
) -> int:
    """Show what would be started to make a run's workers those of a plan; with --yes, start it.

    The coordinator starts the workers and keeps them running, within its own budget and at the prices of its own pool.
    The exit status of a dry run is 0 if nothing would change and 3 otherwise; with --yes it is 0 if every worker that
    the run can start has joined, and 2 if not.

    Parameters
    ----------
    plan
        The plan, which `rollcast capacity plan --out` saved.
    yes
        Carry it out, and wait until every worker has joined or its start has failed.
    stop_others
        Stop the run's workers that the plan does not choose; otherwise they stay on.
    timeout
        How long --yes waits, for example 10m; by default a minute longer than the run gives a worker to join.
    emit
        Ask no run: write the files with which this tool starts the plan's workers of its kind.
    into
        Folder for these files; by default the tool's name.
    json_output
        Print one JSON object.
    """
    document, target = read_plan(plan), Target.of(run)
    if emit is not None:
        return _emit(document, emit, into or Path(emit), json_output=json_output)
    timeout_s = seconds_of(timeout) if timeout else None
    if not target.url and not target.run_folder.exists():
        raise RunFolderError(
            "no run is here that could start the plan's workers",
            cause=f"there is no {target.run_folder} in this folder, and a coordinator starts them",
            fix='start one with providers.pool and providers.want = "apply" (docs/providers.md), or name one with '
            "--url; --emit skypilot, kubernetes or terraform writes files that start the workers without a run",
        )
    fleet = _known_fleet(target)
    steps = application_of(document, fleet, stop_others=stop_others)
    if not yes:
        _show(steps, fleet, done=False, json_output=json_output)
        return CHANGED if steps.changes else FEASIBLE
    _check_requestable(fleet)
    fleet = _carry_out(target, plan.name, steps)
    watched = {one.worker_id for one in (*steps.of("start"), *steps.of("runs"))}
    fleet = wait_for(
        watched, fleet, lambda: _fleet(target), timeout_s or fleet.start_timeout_s + _BEYOND_START_S, time.monotonic
    )
    _show(application_of(document, fleet, stop_others=stop_others), fleet, done=True, json_output=json_output)
    states = {one.worker_id: one.state for one in fleet.workers}
    return FEASIBLE if all(states.get(one) == "on" for one in watched) else INFEASIBLE


def _check_requestable(fleet: FleetOverview) -> None:
    if fleet.want != "apply":
        raise ConfigError(
            "this run starts no workers on request",
            cause=f'providers.want is "{fleet.want}"' if fleet.want else "its configuration names no pool",
            fix='set providers.pool and providers.want = "apply", and restart the coordinator',
        )


def _carry_out(target: Target, plan: str, steps: Application) -> FleetOverview:
    asked = {
        "start": [one.worker_id for one in (*steps.of("start"), *steps.of("runs"))],
        "stop": [one.worker_id for one in steps.of("stop")],
        "reason": f"chosen by {plan}"[:200],
    }
    return _parsed(post_sync(target, "/api/v1/acts/fleet", asked, timeout_s=ACT_TIMEOUT_S))


def wait_for(
    watched: set[str],
    fleet: FleetOverview,
    ask: Callable[[], FleetOverview],
    timeout_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None] = time.sleep,
) -> FleetOverview:
    """Report each change of the watched workers on stderr until all have settled or time is up; return the last state.

    A worker whose start failed once has settled, although the run tries it again.

    Args:
        watched: ids of workers.
        fleet: the state now.
        ask: returns the state, each time anew.
    """
    ends, told, settled = clock() + timeout_s, dict.fromkeys(watched, ""), set[str]()
    while True:
        states = {one.worker_id: one for one in fleet.workers if one.worker_id in watched}
        for worker_id, one in states.items():
            if _line(one) != told[worker_id]:
                told[worker_id] = _line(one)
                note([told[worker_id]])
        settled |= {worker_id for worker_id, one in states.items() if one.state in _SETTLED}
        left = len(states.keys() - settled)
        if not left:
            return fleet
        if clock() >= ends:
            note([f"{left} workers have not joined within {in_words(timeout_s)}; the run goes on with them"])
            return fleet
        sleep(POLL_S)
        fleet = ask()


def _line(one: OfferedWorker) -> str:
    detail = one.why if one.state in ("failed", "refused") else one.where
    return f"{one.worker_id}: {one.state}{f' ({detail})' if detail else ''}"


def _known_fleet(target: Target) -> FleetOverview:
    """Return the fleet once all providers have reported their offers."""
    ends = time.monotonic() + OFFERS_TIMEOUT_S
    fleet = _fleet(target)
    while fleet.want and not fleet.offers_known and time.monotonic() < ends:
        time.sleep(POLL_S)
        fleet = _fleet(target)
    return fleet


def _fleet(target: Target) -> FleetOverview:
    return _parsed(fetch_sync(target, "/api/v1/fleet"))


def _parsed(answer: dict[str, Any]) -> FleetOverview:
    try:
        return msgspec.convert(answer, FleetOverview)
    except msgspec.ValidationError as error:
        raise MalformedMessage("the answer is not a run's fleet", cause=str(error), fix="upgrade one of both") from None


def _show(steps: Application, fleet: FleetOverview, *, done: bool, json_output: bool) -> None:
    if json_output:
        document = {"schema": SCHEMA, "dry_run": not done, "steps": [asdict(one) for one in steps.steps]}
        money = {"usd_per_hour": fleet.usd_per_hour, "spent_usd": fleet.spent_usd}
        print_json(document | {"started_usd_per_hour": steps.started_usd_per_hour} | money)
        return
    print_sheets([application_sheet(steps, fleet, done=done)], "table", title="apply")
    if not done and steps.changes:
        note(["Nothing was changed. Carry it out with --yes."])


def _emit(document: PlanDocument, tool: Tool, folder: Path, *, json_output: bool) -> int:
    """Write a tool's files, and print the steps that a person takes with them."""
    files, left_out = files_for(document, tool)
    write_files(files, folder)
    if json_output:
        found = {"folder": str(folder), "files": list(files.texts), "steps": list(files.steps)}
        print_json({"schema": EMIT_SCHEMA, **found, "left_out": list(left_out)})
        return FEASIBLE
    print("\n".join(str(folder / name) for name in files.texts))
    print("\n  ".join(("Then, in that folder:", *files.steps)))
    if left_out:
        names = ", ".join(left_out[:_LEFT_OUT_SHOWN]) + (" ..." if len(left_out) > _LEFT_OUT_SHOWN else "")
        note([f"{len(left_out)} of the plan's workers are started otherwise: {names}"])
    return FEASIBLE
