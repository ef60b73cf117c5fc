"""Run independent simulations in processes of their own, several at a time: one simulation uses one core only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock, Thread
from typing import Any

from rollcast.runtime.errors import ProcessFailed

_STDERR_KEPT = 2000  # characters of a failed process's last words
_LINES_KEPT = 100
_PROGRESS = "progress "  # begins a line on stderr that tells the share of a process's work that is done


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0))


def report_progress(share: float) -> None:
    """Report to the process that reads this one's document how much of the work is done."""
    sys.stderr.write(f"{_PROGRESS}{share:.4f}\n")
    sys.stderr.flush()


def _no_progress(_place: int, _share: float) -> None:
    pass


def documents(
    commands: Sequence[Sequence[str]], processes: int, progress: Callable[[int, float], None] = _no_progress
) -> Iterator[dict[str, Any]]:
    """Run each command with this interpreter, and yield the JSON object that it prints, in the order of the commands.

    Args:
        commands: arguments of ``python``, for each process.
        processes: the most that run at once.
        progress: called on other threads with the place of a command and the share that it reported (report_progress).

    Raises:
        ProcessFailed: a process printed no JSON object. Those that still run are ended.
    """
    running, lock, ended = set[subprocess.Popen[str]](), Lock(), [False]

    def run(place: int, command: Sequence[str]) -> dict[str, Any]:
        with lock:
            if ended[0]:
                return {}
            process = subprocess.Popen(
                [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            running.add(process)
        try:
            return _printed(process, partial(progress, place))
        finally:
            with lock:
                running.discard(process)

    with ThreadPoolExecutor(max(1, processes)) as pool:
        try:
            yield from pool.map(run, range(len(commands)), commands)
        finally:
            with lock:
                ended[0] = True
                for process in running:
                    process.kill()


def _printed(process: subprocess.Popen[str], progress: Callable[[float], None]) -> dict[str, Any]:
    """Wait until a process has ended, and return the JSON object that it printed.

    Raises:
        ProcessFailed: it printed none.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    words = deque[str](maxlen=_LINES_KEPT)
    follower = Thread(target=_follow, args=(process.stderr, words, progress))
    with process:
        follower.start()
        printed = process.stdout.read()
        follower.join()
    try:
        document: dict[str, Any] = json.loads(printed)
    except ValueError:
        cause = "".join(words)[-_STDERR_KEPT:].strip() or f"exit status {process.returncode}"
        raise ProcessFailed("a simulation failed", cause=cause, fix="repeat it alone") from None
    return document


def _follow(lines: Iterable[str], words: deque[str], progress: Callable[[float], None]) -> None:
    """Report the progress in what a process prints on stderr, and keep the last of its other lines."""
    for line in lines:
        if line.startswith(_PROGRESS):
            progress(float(line.removeprefix(_PROGRESS)))
        else:
            words.append(line)
