"""`rollcast run`: show what a run does now; pause, resume or finish it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

from rollcast.cli.coordinator_api import Target, fetch_sync, post_sync
from rollcast.cli.options import THIS_RUN, Json, Preview, RunOptions

app = App(name="run", help="Show what a run does now; pause, resume or finish it.")

_PATH = "/api/v1/acts/run"

Yes = Annotated[bool, Parameter(negative=())]


@app.default
@app.command(name="status")
def show(*, run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """Show whether all is well with a run, what limits it or what it waits for, and its alerts.

    Parameters
    ----------
    json_output
        Print one JSON object: the dashboard's Overview.
    """
    overview = fetch_sync(Target.of(run), "/api/v1/overview")
    if json_output:
        print(json.dumps(overview, indent=2))
        return 0
    done = f"step {overview['step']:,} of {overview['steps']:,}" if overview["steps"] else "a cell of the head's run"
    print(f"{overview['run_name']}: {done}, {overview['phase']}")
    print(overview["waiting"]["sentence"] if not overview["ended"] else f"The run has ended: {overview['ended']}.")
    for alert in overview["alerts"]:
        print(alert_line(alert))
    return 0


def alert_line(alert: Mapping[str, Any]) -> str:
    """Return an alert of the Overview in one line, with what to do about it."""
    return f"{alert['severity']}: {alert['text']} {alert['fix']}".rstrip()


@app.command
def pause(*, reason: str = "", preview: Preview = False, run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """Pause a run: work in progress is finished and kept, no more is given out, and the learner waits.

    A paused run stays paused when its coordinator is restarted. Workers stay connected; those that cost money go on
    costing it until they are drained.

    Parameters
    ----------
    reason
        The reason that the run's page shows and the audit log keeps.
    preview
        Only say what would follow; change nothing.
    json_output
        Print one JSON object.
    """
    return _act("pause", reason, run, preview=preview, json_output=json_output)


@app.command
def resume(*, reason: str = "", preview: Preview = False, run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """Resume a paused run where it stopped.

    Parameters
    ----------
    reason
        The reason for the audit log.
    preview
        Only say what would follow; change nothing.
    json_output
        Print one JSON object.
    """
    return _act("resume", reason, run, preview=preview, json_output=json_output)


@app.command
def finish(*, yes: Yes = False, reason: str = "", run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """Say what it means to finish a run now; with --yes, finish it before its last step, with the policy that it has.

    The learner publishes its policy, saves a checkpoint and evaluates, and every process ends as after the last step.

    Parameters
    ----------
    yes
        Carry it out. It cannot be undone.
    reason
        The reason that the run's page shows and the audit log keeps.
    json_output
        Print one JSON object.
    """
    return _act("finish", reason, run, preview=not yes, json_output=json_output)


def _act(act: str, reason: str, run: RunOptions, *, preview: bool, json_output: bool) -> int:
    path = f"{_PATH}/preview" if preview else _PATH
    outcome = post_sync(Target.of(run), path, {"act": act, "reason": reason})
    if json_output:
        print(json.dumps(outcome | {"dry_run": preview}, indent=2))
        return 0
    print("\n".join([outcome["sentence"], *(f"warning: {text}" for text in outcome["warnings"])]))
    if preview and outcome["changes"]:
        print(f"Nothing was changed. Carry it out {'with --yes' if act == 'finish' else 'without --preview'}.")
    return 0
