"""Provide programs that take the place of a peer in tests, and read what they leave behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from capacity.providers.base import WorkerTag

#: Copies its invite to a file, and sleeps.
SLEEPER = ("sh", "-c", "cat {folder}/invite.txt > {folder}/saw; exec sleep 600")
#: Ignores SIGTERM.
STUBBORN = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")


def saw(folder: Path, tag: WorkerTag) -> str:
    path = folder / str(tag) / "saw"
    return path.read_text().strip() if path.exists() else ""


def kill_all(folder: Path) -> None:
    """Kill the workers that a failed test left."""
    for path in folder.glob("*/process.json"):
        process = json.loads(path.read_text())
        try:
            stat = Path(f"/proc/{process['pid']}/stat").read_text()
            if int(stat.rpartition(")")[2].split()[19]) == process["start_ticks"]:
                os.kill(process["pid"], signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass
