"""Run a verifier process whose task obeys the completion; test_pool.py runs it in place of the real one.

The configuration's file name selects how the process itself misbehaves; no configuration of Rollcast leads here.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from random import Random

from coordinator.config.tasks import JsonlTask, TaskConfig
from coordinator.tasks.checks.task import Problem, Score
from coordinator.verifiers.worker import main
from rollcast.runtime.errors import TaskError


class Hostile:
    """Verifies by obeying the completion; ``folder`` keeps the marks of earlier processes."""

    name = "hostile"
    problem_count: int | None = 1
    starts_processes = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wording(self) -> tuple[str, ...]:
        return ()

    def characters(self) -> str:
        return "a"

    def problem(self, index: int) -> Problem:
        return Problem("hostile:0", "a", "a", {})

    def demonstration(self, problem: Problem, *, flawed: bool, random: Random) -> str | None:
        return None

    def warm_up(self) -> None:
        """Do nothing: the task needs no library."""

    def verify(self, problem: Problem, completion_text: str) -> Score:
        match completion_text:
            case "hang":
                time.sleep(600)
            case "spin":  # holds the interpreter's lock: no other thread of the process runs
                re.match(r"(a+)+$", "a" * 60 + "b")
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash once" if self._first("crashed"):
                os._exit(3)
            case "raise":
                raise ValueError("no such thing")
            case "print":
                print("[1.0, true, '']\n" * 3, flush=True)
            case "write":
                (self._folder / "written").write_text("x")
            case "memory":
                bytearray(64 << 30)
            case "chatter":
                print("last words", file=sys.stderr, flush=True)
                os._exit(4)
        return Score(1.0, True)

    def _first(self, name: str) -> bool:
        try:
            (self._folder / name).mkdir()
        except FileExistsError:
            return False
        return True


def build(config: TaskConfig, seed: int) -> Hostile:
    assert isinstance(config, JsonlTask)
    task = Hostile(config.path.parent)
    match config.path.name:
        case "refuse":
            raise TaskError("this task is refused", cause="the test says so", fix="none")
        case "die":
            print("died of a bad start", file=sys.stderr, flush=True)
            os._exit(5)
        case "start once":
            if not task._first("started"):
                raise TaskError("it starts only once")
    return task


if __name__ == "__main__":
    sys.exit(main(build))
