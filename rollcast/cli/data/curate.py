"""`rollcast curate SOURCE --out FILE`: prepare a data set for training."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coordinator.tasks.curation.curate import REASONS, Curation, Report
from coordinator.tasks.curation.output import removals, write_kept
from coordinator.tasks.sources import read_rows
from rollcast.cli.data.curate_options import Columns, Difficulty, Repeats, curation_settings
from rollcast.cli.options import Json

_COLUMNS, _REPEATS, _DIFFICULTY = Columns(), Repeats(), Difficulty()


def curate(
    source: str,
    /,
    *,
    out: Path,
    columns: Columns = _COLUMNS,
    repeats: Repeats = _REPEATS,
    difficulty: Difficulty = _DIFFICULTY,
    removed: Path | None = None,
    json_output: Json = False,
) -> int:
    """Write the rows of SOURCE that are fit for training to a JSONL file, and count the removed rows by reason.

    Parameters
    ----------
    source
        A .jsonl or .parquet file, a folder of parquet files, or hf:OWNER/NAME for a Hugging Face dataset.
    out
        File to write. An existing file is replaced only once all rows are done.
    removed
        File for the removed rows, each with its reason.
    json_output
        Print the report as one JSON object.
    """
    settings = curation_settings(repeats, difficulty)
    task = columns.task(source)
    evaluation = repeats.evaluation(columns.prompt)
    with (
        Console(stderr=True).status("reading") as status,
        removals(removed) as on_removed,
        difficulty.rates(task, out) as rates,
    ):
        curation = Curation(
            settings,
            evaluation=evaluation,
            profile=rates,
            on_removed=on_removed,
            on_progress=lambda report: status.update(f"{report.read} rows read, {report.kept} kept"),
        )
        write_kept(out, curation.run(read_rows(task)), answers=bool(columns.answer))
    _print(curation.report, json_output=json_output)
    return 0


def _print(report: Report, *, json_output: bool) -> None:
    if json_output:
        print(json.dumps(report.to_json()))
        return
    console = Console()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("rows", "count", "share"):
        table.add_column(header, justify="left" if header == "rows" else "right")

    def add(name: str, count: int) -> None:
        table.add_row(name, str(count), f"{count / report.read:.1%}" if report.read else "")

    add("read", report.read)
    for reason in REASONS:
        if report.removed[reason]:
            add(f"removed: {reason.replace('_', ' ')}", report.removed[reason])
    for name, count in sorted(report.contaminated_by.items()):
        add(f"  with {name}", count)
    add("kept", report.kept)
    for name, count in sorted(report.normalised.items()):
        add(f"answers normalised: {name.replace('_', ' ')}", count)
    console.print(table)
