"""Becomes a worker's process: `python -m capacity.providers.launch FOLDER PROGRAM ARGUMENT...`.

It locks the worker's folder, writes down which process it is, takes the lowest priority, and then turns into the
program. The lock lasts as long as the process: who cannot take it knows that the worker runs, whatever became of those
who started it, and a second launch of the same worker ends here. Uses nothing but the standard library.
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
    """When a process started, in clock ticks since boot; with its pid that names it for ever.

    Raises:
        OSError: there is no such process.
    """
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])  # field 22; the name before it may hold anything


def boot_id() -> str:
    """Of this boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file that only its owner may read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


def _locked(descriptor: int) -> bool:
    """Take the lock. Who asks whether a worker runs holds it for an instant, hence the patience."""
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
    """Does not return if the program starts; 0 where it must not."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _locked(descriptor):
        return 0  # it runs already
    if not (folder / STOPPED).exists() and not (folder / PROCESS).exists():
        _become(folder, descriptor, program)
    return 0  # it was stopped before it began, or it has ended: a tag is never used again


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
