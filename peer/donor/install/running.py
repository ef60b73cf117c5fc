"""Find, start, wait for and stop the peer process of a state folder, from outside that process."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import DaemonAway, ProcessFailed, RollcastError, WaitTimedOut, meanings_of
from rollcast.runtime.install import module_command
from rollcast.runtime.run_folder import run_folder_error
from rollcast.wire.donor.control_socket import request

STOP_DEADLINE_S = 15.0  # a peer returns its leases within 2 s
_LOOK_S = 0.2
_ASK_S = 2.0
_TAIL_BYTES = 4096
_PID_BYTES = 32


def holder_of(state_folder: Path) -> int | None:
    """Return the id of the process that holds this state folder; None: no process does."""
    try:
        descriptor = os.open(state_folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, _PID_BYTES).strip()
        return int(text) if text.isdigit() else None
    else:
        return None
    finally:
        os.close(descriptor)


def stop(state_folder: Path, deadline_s: float = STOP_DEADLINE_S) -> bool:
    """Stop the peer of this folder, which returns its leases to the coordinator. Return whether there was one.

    Raises:
        WaitTimedOut: it did not end within ``deadline_s``.
    """
    pid = holder_of(state_folder)
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    wait_until_gone(state_folder, deadline_s)
    return True


def wait_until_gone(state_folder: Path, deadline_s: float) -> None:
    """Wait until no process holds the folder.

    Raises:
        WaitTimedOut: a process still holds it after ``deadline_s``.
    """
    gives_up_at_s = time.monotonic() + deadline_s
    while (pid := holder_of(state_folder)) is not None:
        if time.monotonic() >= gives_up_at_s:
            fix = f"read `rollcast peer logs`; `kill -9 {pid}` ends it without returning its leases"
            raise WaitTimedOut(f"the peer (process {pid}) did not end within {deadline_s:g} s", fix=fix)
        time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class Started:
    """A peer that was started.

    Args:
        ended: returns its exit status; None: it still runs.
        log_file: its log.
    """

    ended: Callable[[], int | None]
    log_file: Path


def start_in_background(config_file: Path, state_folder: Path, log_file: Path) -> Started:
    """Start a peer in a session of its own: it survives the end of this terminal, but not a restart of the machine.

    Raises:
        RunFolderError: its log cannot be written.
        ProcessFailed: it cannot be started.
    """
    command = [*peer_command(config_file), "--log-file", str(log_file)]
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with crash_log(log_file).open("wb") as out:  # output of Python itself if it crashes
            process = subprocess.Popen(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
    except FileNotFoundError as error:
        raise ProcessFailed("the peer cannot be started", cause=str(error)) from None
    except OSError as error:
        raise run_folder_error(state_folder, error) from None
    return Started(process.poll, log_file)


def peer_command(config_file: Path) -> list[str]:
    """Return the command that runs a peer with this interpreter."""
    return [*module_command("rollcast.cli.main"), "peer", "run", str(config_file.absolute())]


def crash_log(log_file: Path) -> Path:
    """Return the path, beside a log, of the process's standard output and error."""
    return log_file.with_suffix(".err")


def wait_until_answers(
    state_folder: Path, started: Started, deadline_s: float, waiting: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Wait until the peer answers, and return its first report.

    Args:
        waiting: called repeatedly meanwhile.

    Raises:
        ProcessFailed: the peer ended first; the error quotes the end of its log.
        WaitTimedOut: the peer did not answer in time.
    """
    begun_s = time.monotonic()
    while True:
        try:
            return request(state_folder, {"do": "status"}, _ASK_S)
        except (DaemonAway, WaitTimedOut):
            waited_s = time.monotonic() - begun_s
        status = started.ended()
        if status is not None:
            raise _ended(status, started.log_file)
        if waited_s >= deadline_s:
            fix = "it may still be loading: `rollcast peer status` later, `rollcast peer logs` meanwhile"
            raise WaitTimedOut(f"the peer did not answer within {deadline_s:g} s", fix=fix)
        waiting()
        time.sleep(_LOOK_S)


def _ended(status: int, log_file: Path) -> RollcastError:
    said = [tail for path in (log_file, crash_log(log_file)) if (tail := _last_lines(path))]
    meaning = meanings_of(status)
    return ProcessFailed(
        f"the peer ended with status {status}" + (f" ({meaning})" if meaning else ""),
        cause="\n".join(said),
        fix=f"`rollcast explain status {status}` tells what it means; `rollcast peer logs` has the whole log",
    )


def _last_lines(path: Path, count: int = 6) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-count:])
