"""Read rows from their sources as streams: memory holds one line, one batch of a row group, or the library's stream."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_never

from coordinator.config.tasks import HuggingFaceTask, JsonlTask, ParquetTask, RowsConfig
from coordinator.tasks.fields import COLUMNS_SHOWN, ROW_BYTES_MAX, BadRow, Row, row_of
from rollcast.runtime.errors import MissingExtra, TaskError
from rollcast.runtime.install import install_command

LINE_BYTES_MAX = 2 * ROW_BYTES_MAX  # includes columns that are not used
BATCH_ROWS = 256  # rows of a Parquet row group converted to Python objects at a time

RowsTask = JsonlTask | ParquetTask | HuggingFaceTask


def source_name(config: RowsTask) -> str:
    """Return the name of this source in messages."""
    return config.name if isinstance(config, HuggingFaceTask) else str(config.path)


def read_rows(config: RowsTask) -> Iterator[Row | BadRow]:
    """Yield every row in order; an unusable one as a BadRow with the reason.

    Raises:
        TaskError: the source cannot be read.
        MissingExtra: the package that reads it is not installed.
    """
    for where, value in _values(config):
        try:
            if isinstance(value, BadRow):
                raise value
            row: Row | BadRow = row_of(value, config.fields, where)
        except BadRow as error:
            row = error
        yield row


def good_rows(config: RowsTask) -> Iterator[Row]:
    """Yield the usable rows, at most rows_max; bad ones are skipped or refused, as configured.

    Raises:
        TaskError: the source cannot be read, has no row, or a row is bad; names file and line.
        MissingExtra: the package that reads it is not installed.
    """
    count = 0
    for row in read_rows(config):
        if isinstance(row, BadRow):
            if config.bad_rows == "skip":
                continue
            raise TaskError(str(row), cause=row.cause, fix=_fix(config))
        count += 1
        if count > config.rows_max:
            raise TaskError(
                f"{source_name(config)} has more than {config.rows_max} rows", fix="raise task.rows_max or use fewer"
            )
        yield row
    if not count:
        raise TaskError(f"{source_name(config)} has no problems", cause="no row can be used", fix=_fix(config))


def _fix(config: RowsConfig) -> str:
    names = [name for name in (config.fields.prompt, config.fields.answer, config.fields.tests) if name]
    return f'give every row {" and ".join(map(repr, names))}, correct task.fields, or set task.bad_rows = "skip"'


def _values(config: RowsTask) -> Iterator[tuple[str, Any]]:
    match config:
        case JsonlTask():
            return _jsonl(config.path)
        case ParquetTask():
            return _parquet(config)
        case HuggingFaceTask():
            return _huggingface(config)
        case _:
            assert_never(config)


def _jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if line.strip():
                    where = f"{path}, line {number}"
                    yield where, _parsed(line, where)
                if len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
                    _skip_line(file)
    except OSError as error:
        raise TaskError(f"cannot read the task file {path}", cause=str(error), fix="correct task.path") from None


def _skip_line(file: Any) -> None:
    while (rest := file.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
        pass


def _parsed(line: bytes, where: str) -> Any:
    if len(line) > LINE_BYTES_MAX:
        return BadRow(where, "the line is too long", f"it has more than {LINE_BYTES_MAX} bytes")
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRow(where, "not JSON", str(error))


def _parquet(config: ParquetTask) -> Iterator[tuple[str, Any]]:
    parquet = _library("pyarrow.parquet", "parquet files need the package pyarrow", "data")
    path = config.path
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise TaskError(f"{path} has no *.parquet files", fix="correct task.path")
    for one in files:
        yield from _parquet_file(parquet, one, config)


def _parquet_file(parquet: Any, path: Path, config: ParquetTask) -> Iterator[tuple[str, Any]]:
    errors = (OSError, ValueError)  # pyarrow's own are ValueErrors
    try:
        with parquet.ParquetFile(path) as file:
            known = set(file.schema_arrow.names)
            wanted = [config.fields.prompt, config.fields.answer, config.fields.tests, *config.fields.metadata]
            columns = {name if name in known else name.split(".")[0] for name in wanted if name}
            if missing := sorted(columns - known):
                raise TaskError(
                    f"{path} has no column {missing[0]!r}",
                    cause=f"it has {', '.join(sorted(known)[:COLUMNS_SHOWN])}",
                    fix="correct task.fields",
                )
            number = 0
            for group in range(file.num_row_groups):
                batches = file.iter_batches(BATCH_ROWS, row_groups=[group], columns=sorted(columns))
                for value in (value for batch in batches for value in batch.to_pylist()):
                    number += 1
                    yield f"{path}, row {number}", value
    except errors as error:
        raise TaskError(f"cannot read the task file {path}", cause=str(error), fix="correct task.path") from None


def _huggingface(config: HuggingFaceTask) -> Iterator[tuple[str, Any]]:
    library = _library("datasets", "Hugging Face datasets need the package datasets", "hf")
    where = f"{config.name} [{config.split}]"
    try:
        found = library.load_dataset(
            config.name,
            config.subset or None,
            split=config.split,
            revision=config.revision or None,
            streaming=True,
        )
        for number, value in enumerate(found, start=1):
            yield f"{where}, row {number}", dict(value)
    except Exception as error:  # the library raises whatever its own dependencies raise
        raise TaskError(
            f"cannot read the dataset {where}",
            cause=f"{type(error).__name__}: {error}",
            fix="correct task.name, task.subset, task.split or task.revision; check that this machine reaches the Hub, "
            "or download the dataset and name its folder",
        ) from error


def _library(name: str, what: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(what, cause=str(error), fix=install_command(extra)) from None
