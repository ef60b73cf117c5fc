"""`rollcast samples RUN`: show completions of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

from rollcast.cli.options import Json
from rollcast.cli.run.run_tools import run_config, run_tokenizer
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import RunFolder

LIMIT_MOST = 1_000_000
_ONLY_IN_PARQUET = ("token_ids", "reported_logprobs")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Which rollouts of training to show; each implies --set training."""

    reward_min: float | None = None
    """Lowest reward."""
    reward_max: float | None = None
    """Highest reward."""
    age_min: int | None = None
    """Lowest age, in learner steps when the rollout was trained on."""
    age_max: int | None = None
    """Highest age."""
    tokens_min: int | None = None
    """Shortest completion, in tokens."""
    tokens_max: int | None = None
    """Longest completion."""
    peer: str = ""
    """Name or id of the peer that sent it."""
    problem: str = ""
    """Id of its problem. All answers to one problem, of any version, are shown by version."""
    parquet: Path | None = None
    """Write them to this new Parquet file, with token ids and log-probabilities, instead of showing them."""


_ANY = TrainingOptions()


def samples(
    run: Path,
    /,
    *,
    set_name: Annotated[str, Parameter(name="--set")] = "",
    version: int | None = None,
    limit: int = 20,
    wrong: Annotated[bool, Parameter(negative=())] = False,
    training: TrainingOptions = _ANY,
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
        Version whose evaluation is shown, by default the newest; of training, the oldest version of a rollout.
    limit
        Maximum number of completions.
    wrong
        Only show completions that are not entirely correct.
    json_output
        Print one JSON object per line, as `rollcast curate --pass-rates` reads them.
    """
    from coordinator.prompts.samples import TRAINING, Sample, evaluated
    from coordinator.prompts.stored_rollouts import RolloutFilter, stored_rollouts, write_parquet

    if not 1 <= limit <= LIMIT_MOST:
        raise ConfigError(f"--limit {limit} is out of range", fix=f"use 1 to {LIMIT_MOST}")
    if training != _ANY and set_name not in ("", TRAINING):
        raise ConfigError(f"filters of training do not go with --set {set_name}", fix="leave one of them out")
    folder = RunFolder(run)
    config = run_config(run)
    chosen: Sequence[Sample]
    if set_name == TRAINING or training != _ANY:
        given = {name: value for name, value in asdict(training).items() if name != "parquet"}
        wanted = RolloutFilter(version=version, wrong=wrong, **given)
        found = stored_rollouts(folder, run_tokenizer(config, folder), limit, wanted)
        by_version = sorted(found, key=lambda one: (one.version, one.rollout_id))
        chosen = by_version if training.problem else found
        if training.parquet is not None:
            write_parquet(found, training.parquet)
            print(f"{len(found)} rollouts in {training.parquet}")
            return 0
    else:
        chosen = [one for one in evaluated(folder, set_name, version) if not (wrong and one.exact)][:limit]
    if json_output:
        for one in chosen:
            print(json.dumps(_without_tokens(asdict(one))))
        return 0
    console = Console()
    for one in chosen:
        _show(console, one)
    return 0


def _without_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample whose turns have neither token ids nor log-probabilities, which only Parquet files have."""
    turns = [
        {name: value for name, value in turn.items() if name not in _ONLY_IN_PARQUET}
        for turn in sample.get("turns", ())
    ]
    return sample | {"turns": turns} if turns else sample


def _show(console: Console, one: Any) -> None:
    verdict = "[green]correct[/green]" if one.exact else f"[red]reward {one.reward:g}[/red]"
    peer, age = getattr(one, "peer", ""), getattr(one, "age", None)
    more = (f", {escape(peer)}" if peer else "") + (f", age {age}" if age is not None else "")
    title = f"{escape(one.problem_id)} #{one.sample_index}, {one.set}, version {one.version}{more}: {verdict}"
    console.print(Rule(title, align="left"))
    console.print(f"[dim]prompt[/dim]  {escape(one.prompt)}", highlight=False)
    turns = getattr(one, "turns", ())
    if len(turns) > 1:
        for turn in turns:
            console.print(f"[dim]{turn.role}, version {turn.version}[/dim]  {escape(turn.text)}", highlight=False)
    else:
        console.print(f"[dim]output[/dim]  {escape(one.completion)}", highlight=False)
    if one.answer:
        console.print(f"[dim]answer[/dim]  {escape(one.answer)}", highlight=False)
    if one.parts:
        parts = ", ".join(f"{name} {value:g}" for name, value in one.parts.items())
        console.print(f"[dim]parts[/dim]   {escape(parts)}", highlight=False)
    if one.detail:
        console.print(f"[dim]detail[/dim]  {escape(one.detail)}", highlight=False)
