"""Time ``rollcast capacity plan`` on the shipped pool, from the start of the process to the end of its table.

``plan_cold_s`` is wall time, the median of several fresh processes, whose files are in the disk cache after one that
does not count; ``plan_cpu_s`` is the processor time of the same processes, which a busy machine changes less.
``solve_s`` is the planner's part of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median

from bench.machine import Outcome

_COMMAND = (sys.executable, "-m", "rollcast.cli.main", "capacity", "plan")
_TIMEOUT_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5)


def run(arguments: argparse.Namespace) -> Outcome:
    _timed()
    times = [_timed() for _ in range(arguments.repeats)]
    figures = {
        "plan_cold_s": median(wall_s for wall_s, _ in times),
        "plan_cold_s_max": max(wall_s for wall_s, _ in times),
        "plan_cpu_s": median(cpu_s for _, cpu_s in times),
        "solve_s": _solve_s(),
    }
    return Outcome({"repeats": arguments.repeats}, figures)


def _timed() -> tuple[float, float]:
    """Wall and processor seconds of one process."""
    before, started_s = _children_cpu_s(), time.perf_counter()
    subprocess.run(_COMMAND, check=True, capture_output=True, timeout=_TIMEOUT_S)
    return time.perf_counter() - started_s, _children_cpu_s() - before


def _solve_s() -> float:
    found = subprocess.run((*_COMMAND, "--format", "json"), check=True, capture_output=True, timeout=_TIMEOUT_S)
    return float(json.loads(found.stdout)["plan"]["solve_s"])


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
