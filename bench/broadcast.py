"""How long until the last peer holds a verified copy, against the physical limit, in an emulated wide-area network."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import signal
import statistics
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from bench.machine import Outcome
from bench.systems.base import Broadcast, Case, System
from bench.wan import build
from bench.wan.meter import LATE_MS_MAX
from bench.wan.network import Sockets
from bench.wan.scenarios import SCENARIOS, Bound, fluid_bound, scenario
from rollcast.runtime.errors import MissingExtra, ProcessFailed

#: Name -> module of bench.systems.
SYSTEMS = {
    "rollcast": "rollcast",
    "http-star": "http_star",
    "aria2": "aria2",
    "libtorrent": "libtorrent",
    "libtorrent-tuned": "libtorrent_tuned",
    "shardcast": "shardcast",
}

_MIB = 1 << 20
_GB = 1e9
_IN_MEMORY = Path("/dev/shm")
_ATTEMPTS_PER_RUN = 2  # runs are repeated when the emulator was late, up to this factor altogether
_LIMIT_BOUNDS = 15.0  # a broadcast may take this many times its bound
_LIMIT_S_MIN = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="homo50")
    parser.add_argument("--system", choices=sorted(SYSTEMS), default="rollcast")
    parser.add_argument("--runs", type=int, default=5, help="broadcasts that count")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all rates; delays stay")
    parser.add_argument("--mib", type=float, default=32.0, help="size of what is broadcast")
    parser.add_argument("--congestion", default="cubic", help="congestion control that sockets start with")
    parser.add_argument("--pace", type=int, default=0, help="ceiling of TCP's own pacing in Mbit/s; 0: no pacing")
    parser.add_argument("--keep", type=Path, help="copy configurations and logs to this folder")


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure one system in one scenario.

    Raises:
        MissingExtra: the machine or the system cannot.
        RollcastError: a broadcast failed, or the emulator never kept up.
    """
    build.require()
    system = system_of(arguments.system)
    if lacking := system.missing():
        raise MissingExtra(f"{arguments.system} cannot be measured: {lacking}", fix="install it, or leave it out")
    nodes, size_bytes = scenario(arguments.scenario, arguments.scale), int(arguments.mib * _MIB)
    bound = fluid_bound(size_bytes, nodes)
    with _ended_by_sigterm(), _folder(arguments.keep) as folder:
        limit_s = max(_LIMIT_S_MIN, _LIMIT_BOUNDS * bound.seconds)
        case = Case(nodes, size_bytes, Sockets(arguments.congestion, arguments.pace), folder, limit_s)
        measured, rejected = measure(system, case, bound, arguments.runs)
    names = ("scenario", "system", "runs", "scale", "mib", "congestion", "pace")
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    return Outcome(settings | {"binding": bound.binding}, figures(measured, rejected, case, bound))


def system_of(name: str) -> System:
    """The module that measures a system."""
    return cast(System, importlib.import_module(f"bench.systems.{SYSTEMS[name]}"))


def figures(measured: Sequence[Broadcast], rejected: int, case: Case, bound: Bound) -> dict[str, float]:
    """Medians over the runs that count.

    Bytes are of IP packets. ``cpu_s_per_gb`` is the system's without the emulator; ``cpu_share`` is of all cores by
    whatever runs on the machine, ``cpu_share_system`` and ``cpu_share_emulator`` are parts of it.
    """
    seconds = [one.last_s for one in measured]
    delivered_gb = len(case.receivers) * case.size_bytes / _GB

    def median(values: Iterator[float]) -> float:
        return statistics.median(values)

    return {
        "ratio_median": statistics.median(seconds) / bound.seconds,
        "ratio_max": max(seconds) / bound.seconds,
        "t_bcast_median_s": statistics.median(seconds),
        "first_copy_median_s": median(min(one.seconds.values()) for one in measured),
        "bound_s": bound.seconds,
        "source_bytes_ratio": median(one.cost.source_bytes / case.size_bytes for one in measured),
        "all_bytes_ratio": median(one.cost.all_bytes / case.size_bytes for one in measured),
        "cpu_s_per_gb": median(one.cost.cpu_s / delivered_gb for one in measured),
        "cpu_share": median(one.cost.cpu_share for one in measured),
        "cpu_share_system": median(one.cost.cpu_s / one.cost.core_s for one in measured),
        "cpu_share_emulator": median(one.cost.emulator_cpu_s / one.cost.core_s for one in measured),
        "drops_median": median(float(one.cost.drops) for one in measured),
        "late_max_ms": max(one.cost.late_max_ms for one in measured),
        "runs": len(measured),
        "runs_rejected": rejected,
    }


def measure(system: System, case: Case, bound: Bound, runs: int) -> tuple[list[Broadcast], int]:
    """``runs`` broadcasts in which the emulator kept up, and how many were rejected on the way."""
    measured: list[Broadcast] = []
    rejected = 0
    broadcasts = cast(Generator[Broadcast, None, None], system.broadcasts(case))
    with contextlib.closing(broadcasts):
        for one in broadcasts:
            print(_line(one, case, bound), file=sys.stderr)
            if one.cost.valid:
                measured.append(one)
            else:
                rejected += 1
            if len(measured) >= runs or len(measured) + rejected >= runs * _ATTEMPTS_PER_RUN:
                break
    if not measured:
        raise ProcessFailed(
            f"none of {rejected} runs counts",
            cause=f"the network emulator was late by more than {LATE_MS_MAX:g} ms in each: the processor is full",
            fix="lower the rates (--scale 0.25), or let nothing else run here",
        )
    return measured, rejected


def _line(one: Broadcast, case: Case, bound: Bound) -> str:
    """One run for a person to read: in all, then each receiver's seconds."""
    by_node = " ".join(f"{one.seconds[number]:.1f}" for number in sorted(one.seconds))
    rejected = "" if one.cost.valid else "  REJECTED"
    return (
        f"{one.last_s:.2f} s = {one.last_s / bound.seconds:.2f} x bound, source sent "
        f"{one.cost.source_bytes / case.size_bytes:.2f} x, {one.cost.drops} drops, cpu {one.cost.cpu_s:.1f} s "
        f"(machine {one.cost.cpu_share:.0%} busy), emulator late {one.cost.late_max_ms:.1f} ms{rejected}; "
        f"each receiver: {by_node}"
    )


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A folder in memory; configurations and logs are copied to ``keep`` afterwards."""
    place = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-", dir=place) as name:
        folder = Path(name)
        try:
            yield folder
        finally:
            for path in (*folder.glob("run/logs/*"), *folder.glob("run/config/*"), *folder.glob("node-*/log")):
                if keep is not None and path.is_file():
                    target = keep / path.relative_to(folder)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(path.read_bytes())


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends us as Ctrl-C does, so that namespaces and processes are removed."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
