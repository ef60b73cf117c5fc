"""Read metrics.jsonl, the figures of a run's learner steps: one JSON object per line, appended as steps end.

The coordinator writes the file and reads it back for its dashboard; the report and the calibration read the files of
runs that are over. A crash may have cut the last line short, and a copy may be damaged anywhere, so readers
skip every line that is not an object with an integer ``step``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import StoreError

FILE_BYTES_MAX = 256 << 20  # of one file; bytes beyond it are not read
_TAIL_BYTES = 64 << 10  # read first to find the newest step; doubled until a whole line is in it


@dataclass(slots=True)
class StepsFile:
    """One metrics.jsonl and the steps read from it so far, in the order of its lines."""

    path: Path
    steps: list[dict[str, Any]] = field(default_factory=list)
    _read: int = 0

    def refresh(self) -> None:
        """Append the lines written since the last call; a line cut short waits for its end.

        A missing file has no steps. A file that is shorter than before is another one, and is read from its start.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            size = min(self.path.stat().st_size, FILE_BYTES_MAX)
            if size < self._read:
                self.steps, self._read = [], 0
            if size == self._read:
                return
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read(size - self._read)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read the steps of {self.path.parent.name}", cause=str(error)) from None
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        self.steps += _parsed(whole)


def last_step(path: Path) -> int | None:
    """Return the step of the last whole line, or None where the file is missing or has none.

    Reads from the end: a long run's file has hundreds of megabytes.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        size, span = file.seek(0, 2), _TAIL_BYTES
        while True:
            start = max(0, size - span)
            file.seek(start)
            data = file.read(size - start)
            first = data.find(b"\n") + 1 if start else 0  # the tail begins in the middle of a line
            found = list(_parsed(data[first : data.rfind(b"\n") + 1]))
            if found or not start:
                return int(found[-1]["step"]) if found else None
            span *= 2


def _parsed(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the lines that are objects with a step, and skip the others."""
    for line in data.splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(found.get("step"), int):
            yield {sys.intern(name): value for name, value in found.items()}  # all lines have the same fifty names
