"""`rollcast curate SOURCE --out FILE`: prepare a data set for training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coordinator.tasks.curation.curate import REASONS, Curation, Kept, Report
from coordinator.tasks.curation.output import removals, write_kept
from coordinator.tasks.fields import Row
from coordinator.tasks.sources import read_rows
from rollcast.cli.data.curate_options import Columns, Difficulty, Repeats, curation_settings
from rollcast.cli.options import Json
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.data_files import BadLine, BadRow

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
        try:
            write_kept(out, _usable(curation, read_rows(task), source), answers=bool(columns.answer))
        except TaskError as error:
            error.fix = _as_options(error.fix)
            raise
    _print(curation.report, json_output=json_output)
    return 0


def _usable(curation: Curation, rows: Iterable[Row | BadRow], source: str) -> Iterator[Kept]:
    """Yield the kept rows.

    Raises:
        TaskError: every row is malformed, as where a column has another name.
    """
    first: list[BadRow] = []

    def watched() -> Iterator[Row | BadRow]:
        for row in rows:
            if isinstance(row, BadRow) and not first:
                first.append(row)
            yield row

    yield from curation.run(watched())
    report = curation.report
    if first and report.removed["malformed"] == report.read:
        raise TaskError(
            f"none of the {report.read} rows of {source} can be used",
            cause=f"{first[0]}{first[0].cause and f' ({first[0].cause})'}",
            fix="write one JSON object on each line"
            if isinstance(first[0], BadLine)
            else "give the names of its columns with --prompt, --answer and --tests",
        )


def _as_options(fix: str) -> str:
    """Return a fix that names keys of a task's configuration with the options of this command instead."""
    for key, option in (("task.path", "the path of the source"), ("task.fields", "--prompt, --answer and --tests")):
        fix = fix.replace(key, option)
    return fix


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
