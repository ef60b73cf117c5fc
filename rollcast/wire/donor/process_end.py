"""Keep how a peer's process ended in its state folder, so that its owner can ask after the process is gone."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from rollcast.runtime.run_folder import write_atomically

FILE = "ended.json"
RUN_ENDED = "the run has ended"  # how the reason begins where the coordinator stopped the peer for good
_BYTES_MAX = 4096
_REASON_MAX = 300  # characters: the run's operator may have written it


def write_end(state_folder: Path, reason: str, *, unix_s: float) -> None:
    """Record that the process ended, and why, unless the disk refuses: that must not hide the reason itself."""
    plain = "".join(one if one.isprintable() else " " for one in reason[:_REASON_MAX])
    with contextlib.suppress(OSError):
        write_atomically(state_folder / FILE, json.dumps({"reason": plain, "unix_s": unix_s}).encode())


def remove_end(state_folder: Path) -> None:
    """Remove the record of an earlier process, because a new one starts."""
    with contextlib.suppress(OSError):
        (state_folder / FILE).unlink(missing_ok=True)


def last_end(state_folder: Path) -> str:
    """Return how the last process ended: "it ended at 2026-11-23 20:45: out of memory"; empty if unknown."""
    try:
        with (state_folder / FILE).open("rb") as file:
            values = json.loads(file.read(_BYTES_MAX))
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(values["unix_s"])))
        return f"it ended at {at}: {values['reason']}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ""
