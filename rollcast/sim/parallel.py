"""Run independent simulations in processes of their own, several at a time: one simulation uses one core only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from rollcast.runtime.errors import ProcessFailed

_STDERR_KEPT = 2000  # characters of a failed process's last words


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0))


def documents(commands: Sequence[Sequence[str]], processes: int) -> Iterator[dict[str, Any]]:
    """Run each command with this interpreter, and yield the JSON object that it prints, in the order of the commands.

    Args:
        commands: arguments of ``python``, for each process.
        processes: the most that run at once.

    Raises:
        ProcessFailed: a process printed no JSON object. Those that still run are ended.
    """
    running, lock, ended = set[subprocess.Popen[str]](), Lock(), [False]

    def run(command: Sequence[str]) -> dict[str, Any]:
        with lock:
            if ended[0]:
                return {}
            process = subprocess.Popen(
                [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            running.add(process)
        printed, errors = process.communicate()
        with lock:
            running.discard(process)
        try:
            document: dict[str, Any] = json.loads(printed)
        except ValueError:
            cause = errors[-_STDERR_KEPT:].strip() or f"exit status {process.returncode}"
            raise ProcessFailed("a simulation failed", cause=cause, fix="repeat it alone") from None
        return document

    with ThreadPoolExecutor(max(1, processes)) as pool:
        try:
            yield from pool.map(run, commands)
        finally:
            with lock:
                ended[0] = True
                for process in running:
                    process.kill()
