"""Find how long ago the owner last touched the machine, from terminals and logind's graphical sessions.

Only Linux was tested. If neither terminals nor sessions report anything, there is no answer rather than a guess.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_LOGIND_DEADLINE_S = 2.0
_SESSIONS_MAX = 64

#: Runs a command and returns its standard output; empty if it fails or takes too long.
Ask = Callable[[list[str]], str]


def ask(command: list[str]) -> str:
    """See Ask."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LOGIND_DEADLINE_S, check=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def terminal_touches(folders: Iterable[Path] = (Path("/dev/pts"), Path("/dev"))) -> list[float]:
    """Return when terminals were last typed into, in seconds since 1970: what `w` shows."""
    found: list[float] = []
    for folder in folders:
        pattern = "[0-9]*" if folder.name == "pts" else "tty[0-9]*"
        for path in folder.glob(pattern):
            try:
                found.append(path.stat().st_atime)
            except OSError:
                continue
    return found


def graphical_idle_s(monotonic_s: float, ask: Ask = ask) -> float | None:
    """Return the seconds since the last touch in any graphical session; None if there is none, or logind has no data.

    Args:
        monotonic_s: now on CLOCK_MONOTONIC, the clock of logind's times.
    """
    sessions = [line.split()[0] for line in ask(["loginctl", "list-sessions", "--no-legend"]).splitlines() if line]
    idle: list[float] = []
    for session in sessions[:_SESSIONS_MAX]:
        keys = ("Type", "IdleHint", "IdleSinceHintMonotonic")
        command = ["loginctl", "show-session", session, *(f"--property={key}" for key in keys)]
        values = dict(line.split("=", 1) for line in ask(command).splitlines() if "=" in line)
        if values.get("Type") not in ("x11", "wayland", "mir"):
            continue
        since_us = values.get("IdleSinceHintMonotonic", "")
        is_idle = values.get("IdleHint") == "yes" and since_us.isdecimal()
        idle.append(max(0.0, monotonic_s - int(since_us) / 1e6) if is_idle else 0.0)
    return min(idle, default=None)


def idle_s(ask: Ask = ask) -> float | None:
    """Return the seconds since the owner last touched the machine; None if no terminal or session reports it."""
    now = time.time()
    times = [max(0.0, now - touched) for touched in terminal_touches()]
    graphical = graphical_idle_s(time.clock_gettime(time.CLOCK_MONOTONIC), ask)
    if graphical is not None:
        times.append(graphical)
    return min(times, default=None)
