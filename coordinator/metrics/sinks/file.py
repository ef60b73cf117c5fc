"""Write metrics.jsonl, the sink that every run has."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from rollcast.runtime import finite_json
from rollcast.runtime.logs import FirstFailures
from rollcast.runtime.run_folder import run_folder_error
from rollcast.runtime.steps_file import last_step

log = structlog.get_logger()

UNWRITTEN_MAX = 10_000  # lines that wait for the disk; then the oldest are left out


class FileSink:
    """Writes one JSON object per learner step, in order; a step that is reported twice is written once.

    Lines that cannot be written, as on a full disk, are written with the next one.
    """

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_step = _repair(path)
        self._unwritten: deque[bytes] = deque(maxlen=UNWRITTEN_MAX)
        self._failures = FirstFailures(log, "steps cannot be written, and wait")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one step's line, unless the file has it already."""
        if step > self.last_step:
            self.last_step = step
            self._unwritten.append(finite_json.dumps({"step": step, **values}).encode() + b"\n")
            self._write_all()

    def close(self) -> None:
        """Write what could not be written before."""
        if self._unwritten:
            self._write_all()

    def _write_all(self) -> None:
        try:
            _append(self._path, b"".join(self._unwritten))
        except OSError as error:
            self._failures.failed(file=str(self._path), cause=str(error))
        else:
            self._unwritten.clear()
            self._failures.worked()


def _append(path: Path, data: bytes) -> None:
    """Append all of the data, or nothing.

    Raises:
        OSError: the disk is full, or the file cannot be written.
    """
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        if file.write(data) < len(data):
            file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _repair(path: Path) -> int:
    """Remove a last line that a crash cut short; return the last whole line's step, or -1 if there is none."""
    try:
        with path.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
        found = last_step(path)
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise run_folder_error(path.parent, error) from None
    return -1 if found is None else found
