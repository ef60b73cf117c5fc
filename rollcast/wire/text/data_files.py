"""Read the rows of JSONL and Parquet files as streams: memory holds one line, or one batch of a row group.

The coordinator reads the problems of tasks with it, the learner the examples of supervised training.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import MissingExtra, TaskError
from rollcast.runtime.install import install_command

ROW_BYTES_MAX = 1 << 20  # of the columns that are used
LINE_BYTES_MAX = 2 * ROW_BYTES_MAX  # includes columns that are not used
BATCH_ROWS = 256  # rows of a Parquet row group converted to Python objects at a time
COLUMNS_SHOWN = 12
_SHOWN = 24  # characters of a line that is not JSON


class BadRow(Exception):
    """A row is unusable. ``where`` names file and row; the message is the reason."""

    def __init__(self, where: str, why: str, cause: str = "") -> None:
        super().__init__(f"{where}: {why}")
        self.cause = cause


class BadLine(BadRow):
    """A line of a JSONL file that holds no value at all, so that no setting of columns can help."""


def jsonl_rows(path: Path, *, setting: str) -> Iterator[tuple[str, Any]]:
    """Yield (file and line, value) for each line that is not blank; a BadLine as the value if the line is not JSON.

    Args:
        setting: the configuration key that names the file, for errors.

    Raises:
        TaskError: the file cannot be read.
    """
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
        raise TaskError(f"cannot read the data file {path}", cause=str(error), fix=f"correct {setting}") from None


def parquet_rows(
    path: Path, columns: Collection[str], *, setting: str, columns_setting: str, may_lack: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield (file and row, columns by name) for each row of a Parquet file, or of all such files of a folder.

    Args:
        columns: the columns to read; a dotted name that no column has is that of a field of a column.
        setting: the configuration key that names the file, for errors.
        columns_setting: the configuration key that names the columns.
        may_lack: whether a file may lack some of the columns, which its rows then lack too.

    Raises:
        TaskError: a file cannot be read, or lacks a column.
        MissingExtra: pyarrow is not installed.
    """
    parquet = optional_import("pyarrow.parquet", "parquet files need the package pyarrow", "data")
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise TaskError(f"{path} has no *.parquet files", fix=f"correct {setting}")
    for one in files:
        try:
            with parquet.ParquetFile(one) as file:
                yield from _rows_of(file, one, columns, columns_setting, may_lack)
        except (OSError, ValueError) as error:  # pyarrow's own are ValueErrors
            raise TaskError(f"cannot read the data file {one}", cause=str(error), fix=f"correct {setting}") from None


def optional_import(name: str, what: str, extra: str) -> Any:
    """Import an optional package.

    Raises:
        MissingExtra: it is not installed; ``what`` says what needs it, ``extra`` installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(what, cause=str(error), fix=install_command(extra)) from None


def _rows_of(
    file: Any, path: Path, columns: Collection[str], columns_setting: str, may_lack: bool
) -> Iterator[tuple[str, Any]]:
    known = set(file.schema_arrow.names)
    wanted = {name if name in known else name.split(".")[0] for name in columns}
    if may_lack:
        wanted &= known
    if missing := sorted(wanted - known):
        raise TaskError(
            f"{path} has no column {missing[0]!r}",
            cause=f"it has {', '.join(sorted(known)[:COLUMNS_SHOWN])}",
            fix=f"correct {columns_setting}",
        )
    number = 0
    for group in range(file.num_row_groups):
        batches = file.iter_batches(BATCH_ROWS, row_groups=[group], columns=sorted(wanted))
        for value in (value for batch in batches for value in batch.to_pylist()):
            number += 1
            yield f"{path}, row {number}", value


def _skip_line(file: Any) -> None:
    while (rest := file.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
        pass


def _parsed(line: bytes, where: str) -> Any:
    if len(line) > LINE_BYTES_MAX:
        return BadLine(where, "the line is too long", f"it has more than {LINE_BYTES_MAX} bytes")
    try:
        return json.loads(line.rstrip(b"\r\n").decode())
    except json.JSONDecodeError as error:
        return BadLine(where, "not JSON", f"{error.msg} at column {error.colno}{_found(error)}")
    except (ValueError, RecursionError) as error:
        return BadLine(where, "not JSON", str(error))


def _found(error: json.JSONDecodeError) -> str:
    """Return what stands where a value or a delimiter is expected, for people."""
    rest = error.doc[error.pos :].strip()
    return f", where it has {rest[:_SHOWN]!r}{'...' if len(rest) > _SHOWN else ''}" if rest else ", where it ends"
