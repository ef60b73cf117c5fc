"""metrics.jsonl: the sink that is always there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcast.runtime import finite_json
from rollcast.runtime.run_folder import run_folder_error


class FileSink:
    """One JSON object a learner step, in order; a step that is reported again is written once."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_step = _last_step(path)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one step's line, unless it is there already.

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
        """Every line was written when it came."""


def _last_step(path: Path) -> int:
    """The step of the last whole line; a line cut short by a crash is removed."""
    try:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):
            path.write_bytes(whole)
        return int(json.loads(whole.splitlines()[-1])["step"]) if whole else -1
    except FileNotFoundError:
        return -1
    except (ValueError, KeyError, TypeError):
        return -1
    except OSError as error:
        raise run_folder_error(path.parent, error) from None
