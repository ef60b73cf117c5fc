"""`rollcast curate SOURCE --out FILE`: prepare a data set for training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from coordinator.curation.contamination import EvaluationTexts
from coordinator.curation.curate import REASONS, Curation, CurationSettings, Kept, Profile, Report, recorded
from coordinator.curation.pass_rates import PassRate, read_run, read_samples
from coordinator.tasks.config import FieldsConfig, HuggingFaceTask, JsonlTask, ParquetTask
from coordinator.tasks.fields import Row
from coordinator.tasks.sources import RowsTask, good_rows, read_rows
from rollcast.cli.options import Json
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import ConfigError, TaskError
from rollcast.runtime.run_folder import RunFolder, fsync_folder

Names = Annotated[tuple[str, ...], Parameter(negative=())]


def curate(  # every option of a command is a parameter
    source: str,
    /,
    *,
    out: Path,
    prompt: str = "prompt",
    answer: str = "answer",
    tests: str = "",
    metadata: Names = (),
    split: str = "train",
    subset: str = "",
    revision: str = "",
    against: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    ngram: int = 8,
    overlap: float = 0.5,
    near: float = 0.8,
    normalise: bool = True,
    pass_rates: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    profile: Path | None = None,
    learner_folder: Path | None = None,
    samples: int = 8,
    low: float = 0.0,
    high: float = 1.0,
    keep_unknown: Annotated[bool, Parameter(negative=())] = False,
    check: Literal["math", "exact", "code"] = "math",
    removed: Path | None = None,
    json_output: Json = False,
) -> int:
    """Write the rows of SOURCE that are worth training on to a JSONL file, and count why the others are not.

    Parameters
    ----------
    source
        a .jsonl or .parquet file, a folder of parquet files, or hf:OWNER/NAME.
    out
        the file to write; replaced only when all is done.
    prompt
        column of the prompt; dots lead inwards.
    answer
        column of the answer; empty: there is none.
    tests
        column of unit tests; empty: there are none.
    metadata
        further columns to keep.
    split
        of a Hugging Face dataset.
    subset
        of a Hugging Face dataset.
    revision
        of a Hugging Face dataset.
    against
        evaluation sets as NAME=SOURCE whose problems must not be in the data.
    ngram
        words of the n-grams that overlap is measured in.
    overlap
        share of n-grams in common from which on a row is removed.
    near
        estimated similarity from which on a prompt counts as an earlier one; above 1: never.
    normalise
        bring answers into one form.
    pass_rates
        files of recorded samples, or run folders, that say how often problems are solved.
    profile
        the run folder of a run, whose newest checkpoint solves the problems here to find out.
    learner_folder
        the learner's, where the checkpoints are; that of --profile by default.
    samples
        completions of each problem for --profile.
    low
        rows that are solved less often are removed.
    high
        rows that are solved more often are removed.
    keep_unknown
        keep rows without a pass rate.
    check
        how --profile checks answers.
    removed
        file to write every removed row to, with its reason.
    json_output
        print the report as one JSON object.
    """
    fields = {"prompt": prompt, "answer": answer, "tests": tests, "metadata": list(metadata)}
    task = _task(source, fields, {"split": split, "subset": subset, "revision": revision}, check)
    settings = CurationSettings(
        normalise=normalise,
        near_similarity=near,
        overlap=overlap,
        pass_rate_low=low,
        pass_rate_high=high,
        keep_unknown=keep_unknown,
    )
    _check_shares(ngram, overlap, low, high, samples)
    if pass_rates and profile is not None:
        raise ConfigError("--pass-rates and --profile cannot be used together", fix="leave one away")
    if (low, high) != (0.0, 1.0) and not pass_rates and profile is None:
        raise ConfigError("--low and --high need pass rates", fix="give --pass-rates FILE or --profile RUN")
    evaluation = EvaluationTexts([_set(one, fields) for one in against], ngram) if against else None
    console = Console(stderr=True)
    with ExitStack() as stack:
        status = stack.enter_context(console.status("reading"))
        rates: Profile | None = recorded(_recorded(pass_rates)) if pass_rates else None
        if profile is not None:
            from rollcast.cli.profiling import profiling

            rates = stack.enter_context(
                profiling(profile, learner_folder or profile, task, samples, out.with_name(f"{out.name}.profile.jsonl"))
            )
        curation = Curation(
            settings,
            evaluation=evaluation,
            profile=rates,
            on_removed=_removals(stack, removed),
            on_progress=lambda report: status.update(f"{report.read} rows read, {report.kept} kept"),
        )
        _write(out, curation.run(read_rows(task)), fields)
    _print(curation.report, json_output=json_output)
    return 0


def _task(source: str, fields: dict[str, Any], hub: dict[str, str], check: str) -> RowsTask:
    """The source as a task's configuration."""
    values: dict[str, Any] = {"fields": fields, "check": {"kind": check}, "bad_rows": "skip"}
    if source.startswith("hf:"):
        named = {"kind": "huggingface", "name": source.removeprefix("hf:")}
        return parse_config(values | hub | named, HuggingFaceTask, source=source)
    path = Path(source)
    if path.suffix == ".parquet" or path.is_dir():
        return parse_config(values | {"kind": "parquet", "path": path}, ParquetTask, source=source)
    return parse_config(values | {"kind": "jsonl", "path": path}, JsonlTask, source=source)


def _set(named: str, fields: dict[str, Any]) -> tuple[str, Iterator[str]]:
    """Prompts of an evaluation set; its columns are called as the source's, or prompt."""
    name, separator, source = named.partition("=")
    if not separator or not name or not source:
        raise ConfigError(f"--against {named} names no set", fix="write it as NAME=SOURCE")
    mapping = FieldsConfig(prompt=fields["prompt"], answer="").model_dump()
    task = _task(source, mapping, {"split": "test"}, "exact").model_copy(update={"bad_rows": "refuse"})
    return name, (row.prompt for row in good_rows(task))


def _check_shares(ngram: int, overlap: float, low: float, high: float, samples: int) -> None:
    if not (0.0 <= low <= high <= 1.0 and 0.0 < overlap <= 1.0 and ngram >= 1 and samples >= 1):
        raise ConfigError(
            "a share is out of range",
            cause=f"--low {low:g} --high {high:g} --overlap {overlap:g} --ngram {ngram} --samples {samples}",
            fix="use 0 <= low <= high <= 1, overlap above 0 and up to 1, and at least 1 for the others",
        )


def _recorded(paths: Iterable[Path]) -> dict[int, PassRate]:
    rates: dict[int, PassRate] = {}
    for path in paths:
        for key, rate in (read_run(RunFolder(path)) if path.is_dir() else read_samples(path)).items():
            rates[key] = rates[key] + rate if key in rates else rate
    return rates


def _removals(stack: ExitStack, path: Path | None) -> Any:
    if path is None:
        return lambda removed: None
    try:
        file = stack.enter_context(path.open("w", encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot write {path}", cause=str(error), fix="correct --removed") from None
    return lambda removed: file.write(json.dumps(asdict(removed)) + "\n")


def _write(out: Path, rows: Iterator[Kept], fields: dict[str, Any]) -> None:
    """All rows durably, then under their name: a run that was killed leaves nothing half done there."""
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for kept in rows:
                file.write(json.dumps(_line(kept, fields), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(out)
        fsync_folder(out.parent)
    except OSError as error:
        raise TaskError(f"cannot write {out}", cause=str(error), fix="choose another --out") from None
    finally:
        temporary.unlink(missing_ok=True)


def _line(kept: Kept, fields: dict[str, Any]) -> dict[str, Any]:
    row: Row = kept.row
    line: dict[str, Any] = {"prompt": row.prompt} | ({"answer": row.answer} if fields["answer"] else {})
    if row.tests is not None:
        line["tests"] = row.tests.to_json()
    if kept.pass_rate is not None:
        line |= {"pass_rate": kept.pass_rate.share, "samples": kept.pass_rate.samples}
    return {**row.metadata, **line}


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
