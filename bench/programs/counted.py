"""Run a module as `python -m` does, and record the tasks and objects that can be counted only inside its process.

usage: python -m bench.programs.counted FILE SECONDS MODULE ARGUMENTS ...

Every SECONDS seconds a line of JSON is appended to FILE: {"pid", "asyncio_tasks", "trio_tasks", "objects", "running",
"types"}; "running" counts the tasks by the coroutine they run, "types" the most frequent types of objects. At SIGUSR1
an exception is raised in every trio run of the process, as a bug there would.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

_TYPES_SHOWN = 20


class KilledByTest(RuntimeError):
    """The exception that SIGUSR1 raises to end the libp2p thread."""


def counts() -> dict[str, Any]:
    """Return the numbers of live asyncio and trio tasks and of all objects that the garbage collector tracks."""
    objects: list[Any] = gc.get_objects()
    # Never isinstance: it asks an object for its class, and some modules warn, or load others, when they are asked.
    tasks = [one for one in objects if issubclass(type(one), asyncio.Task) and not one.done()]
    types: Counter[type] = Counter(map(type, objects))
    trio_tasks = [one for one in objects if type(one) in _trio("Task") and one.coro.cr_frame is not None]
    running = Counter(getattr(coro, "__qualname__", "") for coro in [one.get_coro() for one in tasks])
    running.update(f"trio {one.name}" for one in trio_tasks)
    return {
        "pid": os.getpid(),
        "asyncio_tasks": len(tasks),
        "trio_tasks": len(trio_tasks),
        "objects": len(objects),
        "running": dict(running.most_common()),
        "types": {f"{kind.__module__}.{kind.__qualname__}": count for kind, count in types.most_common(_TYPES_SHOWN)},
    }


def count_for_ever(path: Path, interval_s: float) -> None:
    """Append a line of counts to the file every ``interval_s`` seconds, without end."""
    while True:
        time.sleep(interval_s)
        with path.open("a") as stream:
            stream.write(json.dumps(counts()) + "\n")


def end_libp2p(_signal: int, _frame: object) -> None:
    """Raise KilledByTest in every running trio loop of this process."""
    objects: list[Any] = gc.get_objects()
    for token in [one for one in objects if type(one) in _trio("TrioToken")]:
        with contextlib.suppress(RuntimeError):  # raised by the token of a run that has ended
            token.run_sync_soon(_die)


def _die() -> None:
    raise KilledByTest


def _trio(name: str) -> tuple[type, ...]:
    """Return the class of this name in trio.lowlevel as a tuple of one; empty while trio is not imported."""
    module = sys.modules.get("trio.lowlevel")
    return () if module is None else (getattr(module, name),)


def main() -> None:
    path, interval_s, module, *arguments = sys.argv[1:]
    threading.Thread(target=count_for_ever, args=(Path(path), float(interval_s)), daemon=True).start()
    signal.signal(signal.SIGUSR1, end_libp2p)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
