"""Read a task's rows from their sources as streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from coordinator.config.tasks import HuggingFaceTask, JsonlTask, ParquetTask, PythonTask, RowsConfig
from coordinator.tasks.fields import Row, row_of
from coordinator.workers.plugins import load_plugin
from coordinator.workers.tracebacks import USERS_ERRORS, users_traceback
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.data_files import BadLine, BadRow, jsonl_rows, optional_import, parquet_rows

_FIX_LINE = 'write one JSON object on that line, or set task.bad_rows = "skip" to leave such lines out'

RowsTask = JsonlTask | ParquetTask | HuggingFaceTask | PythonTask


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
            fix = _FIX_LINE if isinstance(row, BadLine) else _fix(config)
            raise TaskError(str(row), cause=row.cause, fix=fix)
        count += 1
        if count > config.rows_max and isinstance(config, PythonTask):
            return
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
    return READERS[type(config)](config)


def _jsonl(config: JsonlTask) -> Iterator[tuple[str, Any]]:
    return jsonl_rows(config.path, setting="task.path")


def _parquet(config: ParquetTask) -> Iterator[tuple[str, Any]]:
    return parquet_rows(config.path, _columns(config), setting="task.path", columns_setting="task.fields")


def _python(config: PythonTask) -> Iterator[tuple[str, Any]]:
    """Yield what the user's function yields, or its list holds; it begins anew with each start of the coordinator."""
    where, found = config.path, load_plugin(config.path, "rollcast.tasks")
    try:
        for number, row in enumerate(found() if callable(found) else found, start=1):
            yield f"{where}, problem {number}", row
    except TaskError:
        raise
    except USERS_ERRORS as error:
        raise TaskError(
            f"{where} raised an exception", cause=users_traceback(error), fix="correct the function"
        ) from error


def _columns(config: ParquetTask) -> set[str]:
    fields = config.fields
    return {name for name in (fields.prompt, fields.answer, fields.tests, *fields.metadata) if name}


def _huggingface(config: HuggingFaceTask) -> Iterator[tuple[str, Any]]:
    library = optional_import("datasets", "Hugging Face datasets need the package datasets", "hf")
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


#: What reads the rows of each kind of source, each with its place for messages.
READERS: Mapping[type, Callable[[Any], Iterator[tuple[str, Any]]]] = {
    JsonlTask: _jsonl,
    ParquetTask: _parquet,
    HuggingFaceTask: _huggingface,
    PythonTask: _python,
}
