"""Run a verifier process: read problems and completions as JSON lines from stdin, write scores to stdout, in order.

    -> {"task": {...}, "seed": 7, "timeout_s": 10}
    <- {"ready": true}                     or {"refused": {"code", "what", "cause", "fix"}}
    -> {"items": [[problem as JSON text, completion], ...]}
    <- [reward, exact, error]              one line per item, as soon as it is scored

The process ends when stdin closes, even during an item, so that a killed pool leaves no process behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import math
import os
import queue
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from coordinator.config.tasks import TaskConfig
from coordinator.tasks.build import build_task, task_config_from_json
from coordinator.tasks.checks.task import Problem, TaskAdapter
from coordinator.tasks.multi_task import Mixed
from rollcast.runtime.errors import RollcastError, TaskError

LINE_BYTES_MAX = 32 << 20
ADDRESS_SPACE_BYTES = 4 << 30  # sympy and numpy reserve much more than they use
LINES_AHEAD_MAX = 2  # lines read ahead while an item is scored
ERROR_LENGTH_MAX = 300
PR_SET_PDEATHSIG = 1  # linux/prctl.h

BuildTask = Callable[[TaskConfig, int], TaskAdapter | Mixed]


def main(build: BuildTask = build_task) -> int:
    """Serve until stdin closes. ``build`` makes the task from its configuration."""
    _die_with_parent()
    answers = _private_stdout()
    lines: queue.Queue[bytes] = queue.Queue(LINES_AHEAD_MAX)
    threading.Thread(target=_read_lines, args=(lines,), name="stdin", daemon=True).start()
    _quiet()
    hello = json.loads(lines.get())
    try:
        task = build(task_config_from_json(json.dumps(hello["task"])), int(hello["seed"]))
        task.warm_up()
    except RollcastError as error:
        _answer(answers, {"refused": {"what": error.what, "cause": error.cause, "fix": error.fix}})
        return 1
    _limit_resources(starts_processes=task.starts_processes)
    _answer(answers, {"ready": True})
    while True:
        for problem_json, completion in json.loads(lines.get())["items"]:
            _limit_cpu(float(hello["timeout_s"]))
            _answer(answers, _score(task, problem_json, completion))


def _score(task: TaskAdapter | Mixed, problem_json: str, completion: str) -> tuple[float, bool, str]:
    """Score a completion; an error of the verifier gives 0, because the completion may have caused it on purpose."""
    try:
        score = task.verify(Problem.from_json(problem_json), completion)
    except Exception as error:
        return 0.0, False, f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
    return score.reward, score.exact, ""


def _read_lines(lines: queue.Queue[bytes]) -> NoReturn:
    """Read lines in a thread, which notices the end of stdin even while an item is being scored."""
    while True:
        line = sys.stdin.buffer.readline(LINE_BYTES_MAX + 1)
        if not line.endswith(b"\n"):
            os._exit(0 if not line else 1)
        lines.put(line)


def _private_stdout() -> int:
    """Return a descriptor for answers, and redirect what libraries print to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def _answer(descriptor: int, value: Any) -> None:
    data = memoryview(json.dumps(value).encode() + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


def _quiet() -> None:
    """Keep libraries' warnings about texts that are not mathematics out of the log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the pool, which ends this process
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process with its parent, for code that never lets the stdin thread run."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _limit_resources(*, starts_processes: bool) -> None:
    """Forbid core dumps, files and child processes, and bound memory; called once everything is imported.

    A task that runs programs needs files and processes, and limits those of the programs itself.
    """
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, ADDRESS_SPACE_BYTES)]
    if not starts_processes:
        limits += [(resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 0)]
    for limit, most in limits:
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))


def _limit_cpu(timeout_s: float) -> None:
    """Let the kernel end an item that runs for twice its timeout, in case the pool has died."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(usage.ru_utime + usage.ru_stime + 2 * timeout_s) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (TaskError, KeyError, ValueError) as error:
        sys.exit(str(error))
