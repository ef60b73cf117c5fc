"""Run the main job on a machine that is busy with other work: processes that spin beside it, from its start to its end.

The run is to end with the reward that it has on a quiet machine, only later. ``restarts`` counts the processes of the
run that died and were started again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import runs
from bench.machine import Outcome
from rollcast.cli.processes import Fleet

_SPINNERS = 8
#: Ends by itself when this process is gone, however that ended.
_SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))
    parser.add_argument("--set", action="append", default=[], help="override a setting of the file: section.key=value")
    parser.add_argument("--spinners", type=int, default=_SPINNERS, help="processes that use all the time they get")


class Busy(runs.Story):
    """A story that restarts peers too, as `rollcast up` does."""

    def begin(self, fleet: Fleet) -> None:
        fleet.restart_peers = True


@contextmanager
def spinning(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep ``count`` processes spinning; on leaving, end each by its own id."""
    spinners: list[subprocess.Popen[bytes]] = []
    try:
        spinners += [subprocess.Popen([sys.executable, "-S", "-c", _SPIN]) for _ in range(count)]
        yield spinners
    finally:
        for spinner in spinners:
            spinner.kill()
        for spinner in spinners:
            spinner.wait()


def run(arguments: argparse.Namespace) -> Outcome:
    story = Busy()
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder, spinning(arguments.spinners):
        figures = runs.figures_of(runs.run(arguments.config, Path(folder), arguments.set, story))
    assert story.fleet is not None
    settings = {"config": str(arguments.config), "set": arguments.set, "spinners": arguments.spinners}
    return Outcome(settings, figures | {"restarts": float(story.fleet.restarts.total())})
