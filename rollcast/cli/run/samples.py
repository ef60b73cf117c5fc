"""`rollcast samples RUN`: show completions of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

from rollcast.cli.options import Json
from rollcast.cli.run.run_tools import run_config, run_tokenizer
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import RunFolder

LIMIT_MOST = 1_000_000


def samples(
    run: Path,
    /,
    *,
    set_name: Annotated[str, Parameter(name="--set")] = "",
    version: int | None = None,
    limit: int = 20,
    wrong: Annotated[bool, Parameter(negative=())] = False,
    json_output: Json = False,
) -> int:
    """Show completions of the newest evaluation, or of training, and how they were scored.

    Parameters
    ----------
    run
        The coordinator's run folder, for example runs/latest.
    set_name
        Name of an evaluation set, or `training` for the newest scored rollouts; by default the first set with samples.
    version
        Version whose evaluation is shown; the newest if not given.
    limit
        Maximum number of completions.
    wrong
        Only show completions that are not entirely correct.
    json_output
        Print one JSON object per line, as `rollcast curate --pass-rates` reads them.
    """
    from coordinator.prompts.samples import TRAINING, evaluated, trained

    if not 1 <= limit <= LIMIT_MOST:
        raise ConfigError(f"--limit {limit} is out of range", fix=f"use 1 to {LIMIT_MOST}")
    folder = RunFolder(run)
    config = run_config(run)
    if set_name == TRAINING:
        found = trained(folder, run_tokenizer(config, folder), limit)
    else:
        found = evaluated(folder, set_name, version)
    chosen = [one for one in found if not (wrong and one.exact)][:limit]
    if json_output:
        for one in chosen:
            print(json.dumps(asdict(one)))
        return 0
    console = Console()
    for one in chosen:
        verdict = "[green]correct[/green]" if one.exact else f"[red]reward {one.reward:g}[/red]"
        title = f"{one.problem_id} #{one.sample_index}, {one.set}, version {one.version}: {verdict}"
        console.print(Rule(title, align="left"))
        console.print(f"[dim]prompt[/dim]  {escape(one.prompt)}", highlight=False)
        console.print(f"[dim]output[/dim]  {escape(one.completion)}", highlight=False)
        if one.answer:
            console.print(f"[dim]answer[/dim]  {escape(one.answer)}", highlight=False)
        if one.parts:
            parts = ", ".join(f"{name} {value:g}" for name, value in one.parts.items())
            console.print(f"[dim]parts[/dim]   {escape(parts)}", highlight=False)
        if one.detail:
            console.print(f"[dim]detail[/dim]  {escape(one.detail)}", highlight=False)
    return 0
