"""`rollcast explain`, `replay` and `why`: show what happened in a run, from the records of its coordinator."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from rollcast.cli.durations import seconds_of
from rollcast.cli.options import LATEST_RUN, Json
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder

_CULPRITS_SHOWN = 3
DIFFERENT = 1  # exit status of a replay with a different decision


def explain(*words: str, run_folder: Path = LATEST_RUN, json_output: Json = False) -> int:
    """Show the history of one rollout, lease, prompt group, peer, version or step.

    Parameters
    ----------
    words
        What to explain: `lease 17`, `rollout 9`, `group 3`, `step 40`, `version 8`, `peer NAME` or a peer's id.
    run_folder
        The coordinator's run folder. The run may still be running.
    json_output
        Print one JSON object.
    """
    from coordinator.ledger.story import story_of

    story = story_of(RunFolder(run_folder).ledger, " ".join(words))
    if json_output:
        print(json.dumps(asdict(story), indent=2))
        return 0
    console = Console()
    console.print(f"[bold]{story.subject}[/bold]")
    for name, value in story.facts.items():
        console.print(f"  {name.replace('_', ' ')}: {_text(value)}", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("when (UTC)", "what", "cause"):
        table.add_column(header, overflow="fold")
    for line in story.lines:
        table.add_row(_moment(line.at_unix_s), line.what, line.cause)
    console.print(table)
    return 0


def replay(
    run_folder: Annotated[Path, Parameter()] = LATEST_RUN,
    *,
    life: int | None = None,
    json_output: Json = False,
) -> int:
    """Replay the flight record through the coordinator's core and check that every decision is the same.

    The exit status is 1 if a decision differs.

    Parameters
    ----------
    run_folder
        The coordinator's run folder.
    life
        Which of the run's coordinator processes to replay, 1 for the first; the newest if not given.
    json_output
        Print one JSON object.
    """
    from coordinator.recovery.replay import incarnations, replay

    folder = RunFolder(run_folder)
    lives = incarnations(folder.record)
    if not lives:
        raise RunFolderError(f"there is no flight record in {folder.root}", fix="give the coordinator's run folder")
    console = Console(stderr=True)
    with console.status("replaying") as status:
        replayed = replay(folder, life or lives[-1], progress=lambda done: status.update(f"replayed {done} events"))
    if json_output:
        print(json.dumps(asdict(replayed) | {"identical": replayed.identical}, indent=2))
    else:
        verdict = replayed.difference or "every decision is the same"
        print(f"life {replayed.incarnation}: {replayed.events} events in {replayed.duration_s:.1f} s: {verdict}")
        if replayed.incomplete:
            print(f"the record is incomplete: {replayed.incomplete}")
        step, steps = replayed.status["step"], replayed.status["steps"]
        print(f"the record ends at step {step} of {steps}, {_waiting(replayed.status)}")
    return 0 if replayed.identical else DIFFERENT


def _waiting(status: dict[str, object]) -> str:
    return f"waiting for {status['waiting_for']}" if status["waiting_for"] else f"phase {status['phase']}"


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def why(run_folder: Path = LATEST_RUN, *, since: str = "", json_output: Json = False) -> int:
    """Break down the learner's wall time by cause: training, waiting for peers, publishing, being offline and so on.

    Parameters
    ----------
    run_folder
        The coordinator's run folder. The run may still be running.
    since
        Only count the most recent time, for example 90s, 30m, 2h or 1d.
    json_output
        Print one JSON object.
    """
    from coordinator.report.wall_time import account

    since_unix_s = None if not since else datetime.now(UTC).timestamp() - seconds_of(since)
    found = account(RunFolder(run_folder).ledger, since_unix_s=since_unix_s)
    if json_output:
        print(json.dumps(asdict(found) | {"utilisation": found.utilisation}, indent=2))
        return 0
    console = Console()
    console.print(f"{found.wall_s:.1f} s of the learner's wall time, {found.steps} steps", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header, justify in (("cause", "left"), ("seconds", "right"), ("share", "right"), ("longest for", "left")):
        table.add_column(header, justify=justify)  # type: ignore[arg-type]
    for share in found.shares:
        whose = ", ".join(f"{peer} {seconds:.1f} s" for peer, seconds in list(share.whose.items())[:_CULPRITS_SHOWN])
        table.add_row(share.cause, f"{share.seconds:.1f}", f"{share.share:.1%}", whose)
    table.add_row("unaccounted", f"{found.unaccounted * found.wall_s:.1f}", f"{found.unaccounted:.1%}", "")
    console.print(table)
    return 0
