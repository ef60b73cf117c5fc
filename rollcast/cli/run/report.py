"""`rollcast report RUN`: write a report on a run as one HTML file."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rollcast.cli.options import LATEST_RUN, Json
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder, write_atomically


def report(run_folder: Path = LATEST_RUN, *, out: Path | None = None, json_output: Json = False) -> int:
    """Write a report on a run as one HTML file that opens without a server.

    It shows curves, staleness, the learner's time by cause and the rollouts of each worker.

    Parameters
    ----------
    run_folder
        The coordinator's run folder. The run may still be running.
    out
        File to write; report.html in the run folder if not given.
    json_output
        Print one JSON object with the file's path.
    """
    path = out or run_folder / "report.html"
    size = write_report(RunFolder(run_folder), path)
    print(json.dumps({"file": str(path), "bytes": size}) if json_output else f"{path} ({size / 1000:.0f} kB)")
    return 0


def write_report(folder: RunFolder, path: Path) -> int:
    """Write the report on a run to a file; return its bytes.

    Raises:
        RunFolderError: the run cannot be read, or the file not written.
    """
    from coordinator.report.page import render
    from coordinator.report.run_data import read_facts

    data = render(read_facts(folder), time.time()).encode()
    try:
        write_atomically(path, data)
    except OSError as error:
        fix = "free some space, or name a file with --out in a folder that exists and can be written"
        raise RunFolderError(f"cannot write the report {path}", cause=error.strerror or str(error), fix=fix) from None
    return len(data)
