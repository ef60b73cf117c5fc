"""Test the counts that a process records of itself, and the exception that ends its libp2p thread."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench.programs import counted


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def test_tasks_that_run_are_counted_by_what_they_run() -> None:
    before = counted.counts()
    tasks = [asyncio.create_task(wait_for_ever()) for _ in range(3)]
    await asyncio.sleep(0)
    during = counted.counts()
    assert during["asyncio_tasks"] == before["asyncio_tasks"] + 3
    assert during["running"]["wait_for_ever"] == 3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert counted.counts()["asyncio_tasks"] == before["asyncio_tasks"]


def test_the_signal_ends_a_run_of_trio() -> None:
    trio = pytest.importorskip("trio")
    began, ended, tokens = threading.Event(), list[BaseException](), list[object]()

    async def serve() -> None:
        tokens.append(trio.lowlevel.current_trio_token())  # as a caller from another thread does
        began.set()
        await trio.sleep_forever()

    def main() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    assert began.wait(10.0)
    assert counted.counts()["trio_tasks"] >= 1
    counted.end_libp2p(0, None)
    thread.join(10.0)
    assert not thread.is_alive()
    assert isinstance(ended[0], trio.TrioInternalError)


def test_a_module_runs_as_usual_while_it_is_counted(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    module = tmp_path / "told.py"
    module.write_text("import sys, time\nprint(__name__, sys.argv[1:], flush=True)\ntime.sleep(0.5)\n")
    command = [sys.executable, "-m", "bench.programs.counted", str(counts), "0.1", "told", "a", "b"]
    root = str(Path(counted.__file__).parents[2])
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": f"{root}:{tmp_path}"}, timeout=60
    )
    assert done.stdout.split() == ["__main__", "['a',", "'b']"]
    lines = [json.loads(line) for line in counts.read_text().splitlines()]
    assert lines
    assert {"pid", "asyncio_tasks", "trio_tasks", "objects"} <= lines[0].keys()
