"""`rollcast sft CONFIG`: train a model on examples, for a run of RL to begin with."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rollcast.cli.files import load
from rollcast.cli.options import Json, Settings
from rollcast.cli.roles import require_extra
from rollcast.runtime.config import dump_json
from rollcast.runtime.logs import configure_logging
from rollcast.runtime.process import run_process
from rollcast.runtime.run_folder import RunFolder

_LINE_EVERY_S = 5.0


def sft(
    config: Path,
    /,
    *,
    setting: Settings = (),
    log_file: Path | None = None,
    dry_run: bool = False,
    json_output: Json = False,
) -> int:
    """Train a model on chats or completions. Ctrl-C saves a checkpoint, from which the same command resumes.

    Parameters
    ----------
    config
        Configuration file (TOML). `rollcast config show --role sft` lists its keys.
    setting
        Override one setting of the file, for example epochs=2. May be repeated.
    log_file
        Append the log to this file instead of printing it.
    dry_run
        Check the configuration, print it with defaults filled in, and exit.
    json_output
        Print the summary as JSON on stdout and progress on stderr.
    """
    from learner.supervised.config import SftConfig

    parsed = load(config, "sft", setting)
    assert isinstance(parsed, SftConfig)
    if dry_run:
        print(dump_json(parsed))
        return 0
    require_extra("learner")
    from learner.supervised.service import run  # not at the top: importing jax takes seconds

    configure_logging("sft", log_file=log_file)
    console = Console(stderr=json_output)
    lines = Lines(console)
    status = run_process(lambda stop: run(parsed, stop, lines.show))
    summary = RunFolder(parsed.run_folder).summary
    if status == 0 and summary.exists():
        _print_summary(json.loads(summary.read_text()), console, parsed.run_folder, json_output=json_output)
    return status


class Lines:
    """Prints a line every few seconds, at every held-out loss and at the last step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_at = 0.0

    def show(self, values: Mapping[str, Any]) -> None:
        """Print a step's figures if a line is due."""
        now = time.monotonic()
        if now < self._next_at and "held_out_loss" not in values:
            return
        self._next_at = now + _LINE_EVERY_S
        self._console.print(line(values), soft_wrap=True, highlight=False)


def line(values: Mapping[str, Any]) -> str:
    """Return a step's figures in one line."""
    held_out = f"  held-out {values['held_out_loss']:.4f}" if "held_out_loss" in values else ""
    return (
        f"step {values['step']}/{values['steps']}  epoch {values['epoch'] + 1}  loss {values['loss']:.4f}{held_out}"
        f"  rate {values['learning_rate']:.2g}  {values['tokens_per_s']:,.0f} tokens/s"
    )


def _print_summary(summary: Mapping[str, Any], console: Console, run_folder: Path, *, json_output: bool) -> None:
    if json_output:
        print(json.dumps(summary))
        return
    table = Table("figure", "value", title="summary", title_style="bold")
    for name, value in summary.items():
        table.add_row(name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    if "export" not in summary:
        console.print(f"export it: rollcast export {run_folder} FOLDER", soft_wrap=True, highlight=False)
