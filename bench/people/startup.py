"""Time how soon a person has an answer from ``rollcast peer status`` with a running daemon, and from other commands.

``COMMAND_ms`` is the median wall time of whole new processes in ms; a first one, which does not count, brings their
files into the disk cache. ``COMMAND_cpu_ms`` is processor time, on which other load has less influence. The owner's
daemon of a peer runs meanwhile, with this machine's sensors. ``status_heavy_imports`` counts imported modules that a
status must not need.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.machine import Outcome
from rollcast.runtime.errors import ProcessFailed, RollcastError
from rollcast.wire.donor.control_socket import request

_ROLLCAST = (sys.executable, "-m", "rollcast.cli.main")
_CONFIGS = Path(__file__).parents[2] / "configs"
#: Commands that need no run, besides `peer status`.
_COMMANDS = {
    "help": "--help",
    "up_help": "up --help",
    "up_dry_run": f"up {_CONFIGS}/local.toml --dry-run",
    "config_show": "config show --role up",
    "config_validate": f"config validate {_CONFIGS}/peer.toml",
    "plan_memory": f"plan-memory {_CONFIGS}/qwen3-4b-math.toml",
    "capacity_offers": "capacity offers",
    "capacity_plan": "capacity plan",
    "capacity_what_if": "capacity what-if --staleness 2..4",
}
_TIMEOUT_S = 60.0
_POLL_S = 0.05
_HEAVY = ("jax", "torch", "aiohttp", "libp2p", "grpc", "numpy", "peer", "coordinator", "learner")
_COUNT_HEAVY = f"""
import contextlib, io, sys
from rollcast.cli.main import app
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(sys.argv[1:])
print(len({set(_HEAVY)!r} & set(sys.modules)))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=20)


def run(arguments: argparse.Namespace) -> Outcome:
    """Time the commands.

    Raises:
        ProcessFailed: the daemon did not start.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="rollcast-") as folder, _daemon(Path(folder)):
        status = ("peer", "status", "--state", folder)
        others = {name: tuple(command.split()) for name, command in _COMMANDS.items()}
        for name, command in ({"status": status} | others).items():
            _timed_ms(command)
            times = [_timed_ms(command) for _ in range(arguments.repeats)]
            figures[f"{name}_ms"] = median(wall for wall, _ in times)
            figures[f"{name}_ms_max"] = max(wall for wall, _ in times)
            figures[f"{name}_cpu_ms"] = median(cpu for _, cpu in times)
        heavy = (sys.executable, "-c", _COUNT_HEAVY, *status)
        counted = subprocess.run(heavy, check=True, capture_output=True, timeout=_TIMEOUT_S)
        figures["status_heavy_imports"] = float(counted.stdout)
    return Outcome({"repeats": arguments.repeats}, figures)


@contextlib.contextmanager
def _daemon(folder: Path) -> Iterator[None]:
    command = (sys.executable, "-m", "bench.programs.donor_side", str(folder))
    with subprocess.Popen(command) as process:
        try:
            give_up_s = time.monotonic() + _TIMEOUT_S
            while not _answers(folder):
                if process.poll() is not None or time.monotonic() > give_up_s:
                    raise ProcessFailed("the donor's side of a peer did not start", fix="see its message above")
                time.sleep(_POLL_S)
            yield
        finally:
            process.terminate()


def _answers(folder: Path) -> bool:
    try:
        return bool(request(folder, {"do": "status"}))
    except RollcastError:
        return False


def _timed_ms(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Return the wall and processor milliseconds of one process."""
    before, started_s = _children_cpu_s(), time.perf_counter()
    subprocess.run((*_ROLLCAST, *arguments), check=True, capture_output=True, timeout=_TIMEOUT_S)
    return (time.perf_counter() - started_s) * 1000.0, (_children_cpu_s() - before) * 1000.0


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
