"""Rows in a temporary file without a name: any of them at once, for eight bytes of memory each."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable

from coordinator.tasks.checks.code_tests import read_tests
from coordinator.tasks.fields import Row
from rollcast.runtime.errors import TaskError

WRITE_BYTES = 1 << 20


class RowSpool:
    """The rows of an iterable, in its order. The file goes when nobody holds the spool, or the process ends.

    Raises:
        TaskError: the temporary folder is full or cannot be written.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._ends = array("Q")
        try:
            with tempfile.TemporaryFile(buffering=WRITE_BYTES) as file:
                end = 0
                for row in rows:
                    end += file.write(_to_line(row))
                    self._ends.append(end)
                file.flush()
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise TaskError(
                "cannot keep the task's rows in a temporary file",
                cause=str(error),
                fix="free some space, or set TMPDIR to a folder that has it",
            ) from None
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Row:
        end = self._ends[index]
        start = self._ends[index - 1] if index else 0
        prompt, answer, tests, metadata = json.loads(os.pread(self._file, end - start, start))
        return Row(prompt, answer, read_tests(tests) if tests else None, metadata)


def _to_line(row: Row) -> bytes:
    tests = row.tests.to_json() if row.tests else None
    return json.dumps([row.prompt, row.answer, tests, dict(row.metadata)], separators=(",", ":")).encode()
