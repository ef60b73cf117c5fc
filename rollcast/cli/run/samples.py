"""`rollcast samples RUN`: show completions of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

from rollcast.cli.options import LATEST_RUN, Json
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import RunFolder, no_run

if TYPE_CHECKING:
    from coordinator.prompts.samples import Sample
    from rollcast.wire.text.tokenizer import TextTokenizer

Export = Literal["wandb", "mlflow"]
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
    run: Path = LATEST_RUN,
    /,
    *,
    set_name: Annotated[str, Parameter(name="--set")] = "",
    version: int | None = None,
    limit: Annotated[int, Parameter(name=("--limit", "--n"))] = 20,
    wrong: Annotated[bool, Parameter(negative=())] = False,
    training: TrainingOptions = _ANY,
    export: Export | None = None,
    json_output: Json = False,
) -> int:
    """Show completions of the newest evaluation, or of training, and how they were scored.

    Parameters
    ----------
    run
        The coordinator's run folder.
    set_name
        Name of an evaluation set, or `training` for the newest scored rollouts; by default the first set with samples.
    version
        Version whose evaluation is shown, by default the newest; of training, the oldest version of a rollout.
    limit
        Maximum number of completions.
    wrong
        Only show completions that are not entirely correct.
    export
        Send them to Weights & Biases as a table, or to MLflow as traces, instead of showing them.
    json_output
        Print one JSON object per line, as `rollcast curate --pass-rates` reads them.
    """
    from coordinator.prompts.samples import TRAINING, evaluated
    from coordinator.prompts.stored_rollouts import RolloutFilter, stored_rollouts, write_parquet
    from coordinator.stores.reader import has_run

    if not 1 <= limit <= LIMIT_MOST:
        raise ConfigError(f"--limit {limit} is out of range", fix=f"use 1 to {LIMIT_MOST}")
    if training != _ANY and set_name not in ("", TRAINING):
        raise ConfigError(f"filters of training do not go with --set {set_name}", fix="leave one of them out")
    folder = RunFolder(run)
    if not has_run(folder):
        raise no_run(run, folder.ledger.name)
    chosen: Sequence[Sample]
    if set_name == TRAINING or training != _ANY:
        given = {name: value for name, value in asdict(training).items() if name != "parquet"}
        wanted = RolloutFilter(version=version, wrong=wrong, **given)
        found = stored_rollouts(folder, _tokenizer(folder), limit, wanted)
        if training.parquet is not None:
            write_parquet(found, training.parquet)
            print(f"{len(found)} rollouts in {training.parquet}")
            return 0
        by_version = sorted(found, key=lambda one: (one.version, one.rollout_id))
        chosen, summary = by_version if training.problem else found, _training_summary(len(found), limit)
    else:
        every = evaluated(folder, set_name, version)
        matching = [one for one in every if not (wrong and one.exact)]
        chosen, summary = matching[:limit], _summary(every, matching, limit, wrong=wrong)
    if export is not None:
        _export(export, chosen, folder)
    elif json_output:
        for one in chosen:
            print(json.dumps(_without_tokens(asdict(one))))
    else:
        _show_all(chosen, summary)
    return 0


def _tokenizer(folder: RunFolder) -> TextTokenizer:
    from rollcast.cli.run.run_tools import run_config, run_tokenizer  # the configuration takes half a second to import

    return run_tokenizer(run_config(folder.root), folder)


def _export(to: Export, samples: Sequence[Sample], folder: RunFolder) -> None:
    from coordinator.ledger.sql_facts import get_meta
    from coordinator.prompts.trace_export import export_to_mlflow, export_to_wandb
    from coordinator.stores.reader import reading
    from rollcast.cli.run.run_tools import run_config

    config = run_config(folder.root)
    with reading(folder) as connection:
        run_id = get_meta(connection, "run_id") or config.run.name
    if to == "wandb":
        export_to_wandb(samples, folder.root / "wandb", run_id, config.run.name, config.metrics.wandb)
    else:
        export_to_mlflow(samples, run_id)
    print(f"{len(samples)} samples exported to {to}")


def _training_summary(found: int, limit: int) -> str:
    """Return what was found in the ledger: also that nothing was."""
    if not found:
        return "No stored rollout matches: none is scored yet, they were deleted, or a filter is too narrow."
    return f"{_plural(found, 'stored rollout')} of training, the newest that match; --limit {limit}."


def _summary(every: Sequence[Sample], matching: Sequence[Sample], limit: int, *, wrong: bool) -> str:
    """Return what was found in an evaluation: also that nothing was, which an empty screen would not say."""
    of = f"{_plural(len(every), 'completion')} of the set {every[0].set!r} at version {every[0].version}"
    if wrong and not matching:
        return f"All of the {of} are entirely correct."
    found = f"{len(matching)} of {of} {'is' if len(matching) == 1 else 'are'} not entirely correct" if wrong else of
    return f"{found}, {limit} shown: raise --limit." if len(matching) > limit else f"{found}."


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _without_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample whose turns have neither token ids nor log-probabilities, which only Parquet files have."""
    turns = [
        {name: value for name, value in turn.items() if name not in _ONLY_IN_PARQUET}
        for turn in sample.get("turns", ())
    ]
    return sample | {"turns": turns} if turns else sample


def _show_all(samples: Sequence[Sample], summary: str) -> None:
    console = Console()
    for one in samples:
        _show(console, one)
    console.print(f"[dim]{escape(summary)}[/dim]", highlight=False)


def _show(console: Console, one: Any) -> None:
    verdict = "[green]correct[/green]" if one.exact else f"[red]reward {one.reward:g}[/red]"
    agent, peer, age = getattr(one, "agent", ""), getattr(one, "peer", ""), getattr(one, "age", None)
    more = (f", {escape(peer)}" if peer else "") + (f", age {age}" if age is not None else "")
    acted = f" {escape(agent)}" if agent else ""
    title = f"{escape(one.problem_id)} #{one.sample_index}{acted}, {one.set}, version {one.version}{more}: {verdict}"
    console.print(Rule(title, align="left"))
    console.print(f"[dim]prompt[/dim]  {escape(one.prompt)}", highlight=False)
    turns = getattr(one, "turns", ())
    if len(turns) > 1:
        for turn in turns:
            made = f"{turn.role}, version {turn.version}" if turn.role == "assistant" else turn.role
            console.print(f"[dim]{made}[/dim]  {escape(turn.text)}", highlight=False)
    else:
        console.print(f"[dim]output[/dim]  {escape(one.completion)}", highlight=False)
    if one.answer:
        console.print(f"[dim]answer[/dim]  {escape(one.answer)}", highlight=False)
    if one.parts:
        parts = ", ".join(f"{name} {value:g}" for name, value in one.parts.items())
        console.print(f"[dim]parts[/dim]   {escape(parts)}", highlight=False)
    if one.detail:
        console.print(f"[dim]detail[/dim]  {escape(one.detail)}", highlight=False)
