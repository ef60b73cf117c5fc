"""`rollcast explain`, `replay` and `why`: show what happened in a run, from the records of its coordinator.

`explain` also shows what an error's code or an exit status means, for which it needs no run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from rollcast.cli.durations import seconds_of
from rollcast.cli.options import LATEST_RUN, Json
from rollcast.cli.start.error_page import heading_asked, section
from rollcast.runtime.run_folder import RunFolder, no_run

if TYPE_CHECKING:
    from coordinator.report.wall_time import Doing
    from coordinator.stores.story import Line

_CULPRITS_SHOWN = 3
_SHARE_SHOWN = 0.001  # of the wall time, below which `why` shows no remainder
DIFFERENT = 1  # exit status of a replay with a different decision


def explain(*words: str, run_folder: Path = LATEST_RUN, json_output: Json = False) -> int:
    """Show the history of one rollout, lease, prompt group, peer, version or step; or what an error means.

    Parameters
    ----------
    words
        What to explain: `lease 17`, `rollout 9`, `group 3`, `step 40`, `version 8`, `peer NAME` or a peer's id.
        Leases and steps count from 1; leases of a restarted coordinator are written `2.17`.
        Without a run: an error's code, `RC302`, or an exit status, `status 77`.
    run_folder
        The coordinator's run folder. The run may still be running.
    json_output
        Print one JSON object.
    """
    subject = " ".join(words)
    heading = heading_asked(subject)
    if heading is not None:
        return _print_section(section(heading), json_output)
    from coordinator.stores.story import story_of

    story = story_of(RunFolder(run_folder), subject)
    if json_output:
        print(json.dumps(asdict(story), indent=2))
        return 0
    console = Console()
    console.print(f"[bold]{story.subject}[/bold]")
    facts = dict(story.facts)
    figures = facts.pop("figures", {})
    for name, value in facts.items():
        console.print(f"  {_fact(name, value, story.names)}", highlight=False, markup=False)
    _print_lines(console, story.lines)
    if figures:
        _print_figures(console, figures, story.names)
    return 0


def _print_section(text: str, json_output: bool) -> int:
    heading, _, body = text.partition("\n")
    if json_output:
        print(json.dumps({"subject": heading, "text": body.strip()}, indent=2))
        return 0
    console = Console()
    console.print(f"[bold]{heading}[/bold]")
    console.print(Markdown(body))
    return 0


def _print_lines(console: Console, lines: tuple[Line, ...]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("when (UTC)", "what", "cause"):
        table.add_column(header, overflow="fold")
    for line in lines:
        table.add_row(_moment(line.at_unix_s), escape(line.what), escape(line.cause))
    console.print(table)


def _print_figures(console: Console, figures: dict[str, float], names: dict[str, str]) -> None:
    """Print a step's figures by name; a figure of each peer (`kl_k3:ID`) is one row."""
    of_peers: dict[str, dict[str, float]] = {}
    for name, value in figures.items():
        kind, colon, peer_id = name.partition(":")
        of_peers.setdefault(kind, {})[peer_id if colon else ""] = value
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header, justify in (("figure", "left"), ("value", "right"), ("by peer", "left")):
        table.add_column(header, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for kind, values in sorted(of_peers.items()):
        whole = f"{values.pop(''):.5g}" if "" in values else ""
        by_peer = sorted((names.get(peer_id, peer_id), f"{value:.3g}") for peer_id, value in values.items())
        table.add_row(kind, whole, escape(", ".join(f"{name} {value}" for name, value in by_peer)))
    console.print(table)


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
        raise no_run(folder.root, f"flight record ({folder.record.name})")
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


def _fact(name: str, value: object, names: dict[str, str]) -> str:
    if name == "id":
        return f"id: {value}"
    if name == "segments" and isinstance(value, list):
        return f"segments: {'; '.join(_segment(one, names) for one in value)}"
    if name.endswith("_s") and isinstance(value, float):
        return f"{name.removesuffix('_s').replace('_', ' ')}: {value:.3g} s"
    return f"{name.removesuffix('_id').replace('_', ' ')}: {_in_words(value, names)}"


def _segment(segment: Mapping[str, Any], names: Mapping[str, str]) -> str:
    from rollcast.wire.rollouts import ENVIRONMENT

    tokens = "1 token" if segment["tokens"] == 1 else f"{segment['tokens']:,} tokens"
    if segment["peer"] == ENVIRONMENT:
        return f"{tokens} by the environment"
    epoch = f" of epoch {segment['epoch']}" if segment["epoch"] else ""
    return f"{tokens} by {names.get(segment['peer'], segment['peer'])} with version {segment['version']}{epoch}"


def _in_words(value: object, names: dict[str, str]) -> str:
    """Return a fact as a person would write it, with the names of peers."""
    match value:
        case dict():
            named = {names.get(key, key.replace("_", " ")): _in_words(one, names) for key, one in value.items()}
            return ", ".join(f"{key}: {one}" for key, one in named.items()) or "none"
        case list():
            return "; ".join(_in_words(one, names) for one in value) or "none"
        case str():
            return names.get(value, value)
        case float():
            return f"{value:.4g}"
    return str(value)


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
    from coordinator.ledger.sql_facts import peer_names
    from coordinator.report.wall_time import Account, account
    from coordinator.stores.reader import reading

    since_unix_s = None if not since else datetime.now(UTC).timestamp() - seconds_of(since)
    folder = RunFolder(run_folder)
    found = account(folder, since_unix_s=since_unix_s) or Account(0.0, 0, (), 0.0)
    if json_output:
        print(json.dumps(asdict(found) | {"utilisation": found.utilisation}, indent=2))
        return 0
    console = Console()
    if not since and not found.shares:
        console.print("No step was trained yet: no learner has reported to this run.")
        return 0
    if since and not found.shares:
        console.print(f"The run recorded nothing in the last {since}. Leave out --since to see the whole run.")
        return 0
    with reading(folder) as connection:
        names = peer_names(connection)
    if found.doing is not None and found.steps == 0:
        console.print(_before_the_first_step(found.doing), highlight=False, markup=False, soft_wrap=True)
    console.print(f"{found.wall_s:.1f} s of the learner's wall time, {found.steps} steps", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header, justify in (("cause", "left"), ("seconds", "right"), ("share", "right"), ("longest for", "left")):
        table.add_column(header, justify=justify)  # type: ignore[arg-type]
    for share in found.shares:
        longest = list(share.whose.items())[:_CULPRITS_SHOWN]
        whose = ", ".join(f"{names.get(peer_id, peer_id)} {seconds:.1f} s" for peer_id, seconds in longest)
        table.add_row(share.cause, f"{share.seconds:.1f}", f"{share.share:.1%}", escape(whose))
    if found.unaccounted >= _SHARE_SHOWN:
        table.add_row("unaccounted", f"{found.unaccounted * found.wall_s:.1f}", f"{found.unaccounted:.1%}", "")
    console.print(table)
    return 0


def _before_the_first_step(doing: Doing) -> str:
    """Say what the learner did at its newest report: the run may have been stopped since."""
    from coordinator.views.phrases import duration

    at, since = (f"{datetime.fromtimestamp(one, UTC):%H:%M:%S} UTC" for one in (doing.at_unix_s, doing.since_unix_s))
    if doing.phase != "warm_start":
        what = f"{doing.phase.replace('_', ' ')} ({doing.detail})" if doing.detail else doing.phase.replace("_", " ")
        return f"No step has ended yet. Since {since}, which is not counted below: {what}."
    lasted_s = doing.at_unix_s - doing.since_unix_s
    has = f"has run for {duration(lasted_s)}, since {since}" if lasted_s > 0 else "has begun"
    return f"At {at} the learner reported that its warm start {has}: {doing.detail}."
