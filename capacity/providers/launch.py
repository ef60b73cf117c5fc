"""Become a worker's process: `python -m capacity.providers.launch FOLDER PROGRAM ARGUMENT...`.

The launcher locks the worker's folder, records its process, takes the lowest priority, and then executes the program in
its own place. The lock lasts as long as the process: a process that cannot take it knows that the worker runs, even if
the coordinator that started it has ended, and a second launch of the same worker ends here. The launcher uses only the
standard library.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

LOCK, PROCESS, STOPPED, LOG = "lock", "process.json", "stopped", "worker.log"
_NICEST = 19
_LOCK_WAIT_S = 1.0


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; with pid and boot it identifies a process for ever.

    Raises:
        OSError: there is no such process.
    """
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])  # field 22; the name before it may hold any character


def boot_id() -> str:
    """Return the kernel's random id of this machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically, its content synced before; only the owner may read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


def _locked(descriptor: int) -> bool:
    """Take the lock, and return whether that succeeded within 1 s.

    The wait is needed because an agent that checks whether a worker runs holds the lock for an instant.
    """
    end = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)


def main(folder: Path, program: list[str]) -> int:
    """Execute the program in this process, which does not return; return 0 if the program must not start."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _locked(descriptor):
        return 0  # the worker runs already
    if not (folder / STOPPED).exists() and not (folder / PROCESS).exists():
        _become(folder, descriptor, program)
    return 0  # the worker was stopped before it began, or it has ended: a tag is never used again


def _become(folder: Path, descriptor: int, program: list[str]) -> NoReturn:
    pid = os.getpid()
    process = {"pid": pid, "start_ticks": start_ticks(pid), "boot_id": boot_id(), "started_unix_s": time.time()}
    write_durably(folder / PROCESS, json.dumps(process).encode())
    os.setpriority(os.PRIO_PROCESS, 0, _NICEST)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.set_inheritable(descriptor, True)
    os.execvp(program[0], program)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
