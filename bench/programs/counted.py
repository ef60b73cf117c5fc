"""Run a module as `python -m` does, and write down beside it what only its process knows: tasks and objects.

usage: python -m bench.programs.counted FILE SECONDS MODULE ARGUMENTS ...

Every so many seconds a line of JSON is added to FILE: {"pid", "asyncio_tasks", "trio_tasks", "objects"}, and the ten
most frequent types of objects. At SIGUSR1 the thread named libp2p is ended by an exception, as a bug in it would.
"""

from __future__ import annotations

import asyncio
import ctypes
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

_TYPES_SHOWN = 10


class KilledByTest(RuntimeError):
    """What ends the libp2p thread."""


def counts() -> dict[str, Any]:
    """Live tasks of asyncio and trio, and objects in all that the collector knows."""
    trio_task = getattr(sys.modules.get("trio.lowlevel"), "Task", None)
    types: Counter[type] = Counter(map(type, gc.get_objects()))
    asyncio_tasks = sum(count for kind, count in types.items() if issubclass(kind, asyncio.Task))
    return {
        "pid": os.getpid(),
        "asyncio_tasks": asyncio_tasks,
        "trio_tasks": types[trio_task] if trio_task is not None else 0,
        "objects": types.total(),
        "types": {f"{kind.__module__}.{kind.__qualname__}": count for kind, count in types.most_common(_TYPES_SHOWN)},
    }


def count_for_ever(path: Path, interval_s: float) -> None:
    """Add a line every so often."""
    while True:
        time.sleep(interval_s)
        with path.open("a") as stream:
            stream.write(json.dumps(counts()) + "\n")


def end_libp2p(_signal: int, _frame: object) -> None:
    """Raise in the thread of that name, if it runs."""
    for thread in threading.enumerate():
        if thread.name == "libp2p" and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KilledByTest))


def main() -> None:
    path, interval_s, module, *arguments = sys.argv[1:]
    threading.Thread(target=count_for_ever, args=(Path(path), float(interval_s)), daemon=True).start()
    signal.signal(signal.SIGUSR1, end_libp2p)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
