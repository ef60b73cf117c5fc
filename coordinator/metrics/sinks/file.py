"""Write metrics.jsonl, the sink that every run has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcast.runtime import finite_json
from rollcast.runtime.run_folder import run_folder_error
from rollcast.runtime.steps_file import last_step


class FileSink:
    """Writes one JSON object per learner step, in order; a step that is reported twice is written once."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_step = _repair(path)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one step's line, unless the file has it already.

        Raises:
            RunFolderError: the disk is full or the file cannot be written.
        """
        if step <= self.last_step:
            return
        line = finite_json.dumps({"step": step, **values}) + "\n"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise run_folder_error(self._path.parent, error) from None
        self.last_step = step

    def close(self) -> None:
        """Do nothing: ``write`` closes the file after every line."""


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
