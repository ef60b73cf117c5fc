"""Decide for how long a starting process is waited for, by the time that it ran and not by the clock alone.

On a machine with many other processes a start takes as much processor time as ever and far more time by the clock. So
the limit holds for the process's own processor time; by the clock it is only required to get on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rollcast.runtime.run_folder import write_json

_SHARE_MIN = 0.01  # of one processor, on average over a limit: with less a process waits for something else
_LIMITS_MOST = 20.0  # by the clock: what a machine of two cores with a load of 40 needs


class StartDeadline:
    """The deadline of one start; all times in seconds, by any monotonic clock.

    Args:
        limit_s: processor time that the start may take, and the time by the clock within which it must get on.
        now_s: the time at which it began.
    """

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._began_s = self._window_s = now_s
        self._used_s = self._used_before_s = self._used_at_restart_s = 0.0

    def restart(self, now_s: float, used_s: float | None) -> None:
        """Begin anew: the process reported that it does something for which it has a deadline of its own.

        used_s: as for ``passed``.
        """
        self._began_s = self._window_s = now_s
        self._used_s = self._used_before_s = 0.0
        self._used_at_restart_s = used_s or 0.0

    def passed(self, now_s: float, used_s: float | None) -> str:
        """Return why the process is waited for no longer, for people; empty while it is.

        used_s: processor time that the process and its children used so far; None: the system does not report it.
        """
        waited_s = now_s - self._began_s
        if used_s is None:
            return f"it took {waited_s:.0f} s" if waited_s >= self._limit_s else ""
        self._used_s = max(self._used_s, used_s - self._used_at_restart_s)
        if self._used_s >= self._limit_s:
            return f"it used {self._used_s:.0f} s of processor time in {waited_s:.0f} s"
        if waited_s >= _LIMITS_MOST * self._limit_s:
            return f"it used {self._used_s:.1f} s of processor time in {waited_s:.0f} s, the most that is waited"
        if now_s - self._window_s < self._limit_s:
            return ""
        in_window_s = self._used_s - self._used_before_s
        if in_window_s < _SHARE_MIN * self._limit_s:
            return f"it used {in_window_s:.2f} s of processor time within the last {now_s - self._window_s:.0f} s"
        self._window_s, self._used_before_s = now_s, self._used_s
        return ""


@dataclass(frozen=True, slots=True)
class StartReport:
    """What a starting process does, as it writes to a file every second."""

    doing: str
    """For people."""
    written_ns: int
    """When the file was written; a report that stays the same is of a process that hangs or was killed."""

    @staticmethod
    def write(path: Path, doing: str) -> None:
        """Replace the report in the file.

        Raises:
            OSError: it cannot be written.
        """
        write_json(path, {"doing": doing})

    @classmethod
    def read(cls, path: Path) -> StartReport | None:
        """Return the report in the file; None if there is none."""
        try:
            written_ns = path.stat().st_mtime_ns
            return cls(str(json.loads(path.read_text())["doing"]), written_ns)
        except (OSError, ValueError, KeyError, TypeError):
            return None
