"""Measure the time until the last peer holds a verified copy, against the physical limit, in an emulated network."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bench.machine import Outcome, alone
from bench.relays import simulated
from bench.relays.simulated import SIMULATED
from bench.systems.base import Broadcast, Case, System
from bench.wan import build
from bench.wan.meter import LATE_MS_MAX
from bench.wan.network import Sockets
from bench.wan.scenarios import (
    BEHIND_NAT,
    BITS_PER_BYTE,
    ON_LOOPBACK,
    SCENARIOS,
    TROUBLES,
    Bound,
    fluid_bound,
    own_bounds_s,
    scenario,
)
from rollcast.runtime.errors import ConfigError, MissingExtra, ProcessFailed

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
_MIB_DEFAULT = 32.0
_MIB_BY_SCENARIO = {"peers32": 16.0, "nat50": 16.0, "gigabit": 256.0}
_GB = 1e9
_IN_MEMORY = Path("/dev/shm")
_ATTEMPTS_PER_RUN = 2  # runs are repeated when the emulator was late, up to this factor altogether
_LIMIT_BOUNDS = 15.0  # a broadcast may take this many times its bound
_LIMIT_S_MIN = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenario", choices=sorted({*SCENARIOS, *SIMULATED}), default="homo50")
    parser.add_argument(
        "--system",
        action="append",
        help=f"one of {', '.join(SYSTEMS)}; several, each in turn: again, or with commas between; default rollcast",
    )
    parser.add_argument("--runs", type=int, default=5, help="measured broadcasts of each system")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all rates; delays stay")
    parser.add_argument("--mib", type=float, help="size of a version; default: 32; 16 with many peers, 256 on loopback")
    parser.add_argument("--congestion", default="cubic", help="default congestion control of sockets")
    parser.add_argument(
        "--pace",
        type=int,
        default=0,
        help="ceiling of TCP's own pacing in Mbit/s; 0: the system's own default, which is no pacing in other systems",
    )
    parser.add_argument(
        "--burst",
        type=int,
        default=2,
        help="least burst of paced TCP in segments (sysctl tcp_min_tso_segs); larger bursts cost less processor time",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="ROLE.section.key=value for Rollcast's daemons; ROLE: coordinator, learner, origin, peer (also for the "
        "origin, unless it has its own)",
    )
    parser.add_argument("--keep", type=Path, help="copy configurations and logs to this folder")


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure one system in one scenario, or several in turn; the keys of several begin with the system's name.

    Raises:
        ConfigError: there is no such system, or it cannot be measured in the scenario.
        MissingExtra: the machine or a system lacks something.
        RollcastError: a broadcast failed, or the emulator never kept up.
    """
    names = _systems(arguments.system or ["rollcast"], arguments.scenario)
    if arguments.scenario in SIMULATED:
        return _simulated(arguments)
    if arguments.scenario not in ON_LOOPBACK:
        build.require()
    for name in names:
        if lacking := system_of(name).missing():
            raise MissingExtra(f"{name} cannot be measured: {lacking}", fix="install it, or leave it out")
    size_bytes = int((arguments.mib or _MIB_BY_SCENARIO.get(arguments.scenario, _MIB_DEFAULT)) * _MIB)
    bound = fluid_bound(size_bytes, scenario(arguments.scenario, arguments.scale))
    results: dict[str, float] = {}
    with ended_by_sigterm(), alone():
        for name in names:
            prefix = f"{name}." if len(names) > 1 else ""
            print(f"{name} in {arguments.scenario}", file=sys.stderr)
            with working_folder(arguments.keep and arguments.keep / name) as folder:
                measured = measure(system_of(name), _case(arguments, size_bytes, bound, folder), bound, arguments.runs)
            if arguments.scenario in BEHIND_NAT:
                print(f"{name} without routers", file=sys.stderr)
                with working_folder(arguments.keep and arguments.keep / f"{name}-open") as folder:
                    open_case = _without_routers(_case(arguments, size_bytes, bound, folder))
                    measured = replace(
                        measured, clean=measure(system_of(name), open_case, bound, arguments.runs).counted
                    )
            found = figures(measured, bound)
            results |= {f"{prefix}{key}": value for key, value in found.items()}
    kept = ("scenario", "runs", "scale", "congestion", "pace", "burst", "set")
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in kept}
    settings |= {"system": ",".join(names), "mib": size_bytes / _MIB, "binding": bound.binding}
    return Outcome(settings, results)


def _simulated(arguments: argparse.Namespace) -> Outcome:
    """Run a scenario among simulated links, which needs neither namespaces nor a quiet machine."""
    name, runs, scale = arguments.scenario, arguments.runs, arguments.scale
    mib = arguments.mib or SIMULATED[name].mib
    found = simulated.run(name, int(mib * _MIB), runs, scale, lambda line: print(line, file=sys.stderr))
    return Outcome({"scenario": name, "runs": runs, "scale": scale, "mib": mib, "system": "simulated"}, found)


def _systems(given: Sequence[str], scenario_name: str) -> list[str]:
    names = [name for part in given for name in part.split(",")]
    for name in names:
        if name not in SYSTEMS:
            raise ConfigError(f"there is no system {name!r}", fix=f"choose from {', '.join(SYSTEMS)}")
        if scenario_name in (*TROUBLES, *BEHIND_NAT, *SIMULATED, *ON_LOOPBACK) and name != "rollcast":
            raise ConfigError(
                f"{name} cannot be measured in {scenario_name}",
                cause="only Rollcast can be killed in the middle of a broadcast, run behind routers or on loopback, "
                "or be simulated",
                fix="leave it out, or choose a scenario that is emulated, without trouble and routers",
            )
    return list(dict.fromkeys(names))


def _case(arguments: argparse.Namespace, size_bytes: int, bound: Bound, folder: Path) -> Case:
    return Case(
        scenario(arguments.scenario, arguments.scale),
        size_bytes,
        Sockets(arguments.congestion, arguments.pace, arguments.burst),
        folder,
        max(_LIMIT_S_MIN, _LIMIT_BOUNDS * bound.seconds),
        bound.seconds,
        TROUBLES.get(arguments.scenario),
        emulated=arguments.scenario not in ON_LOOPBACK,
        settings=tuple(arguments.set),
    )


def _without_routers(case: Case) -> Case:
    return replace(case, nodes=tuple(node.open() for node in case.nodes))


def system_of(name: str) -> System:
    """Return the module that measures a system."""
    return cast(System, importlib.import_module(f"bench.systems.{SYSTEMS[name]}"))


@dataclass(frozen=True, slots=True)
class Measured:
    """The broadcasts in which the emulator kept up.

    Args:
        counted: broadcasts that the figures describe, with the case's trouble or routers where it has some.
        clean: broadcasts without that trouble or those routers; empty where the case has neither.
        rejected: number of broadcasts that do not count because the emulator was late.
    """

    case: Case
    counted: tuple[Broadcast, ...]
    clean: tuple[Broadcast, ...]
    rejected: int


def figures(measured: Measured, bound: Bound) -> dict[str, float]:
    """Return the figures: medians over the runs that count.

    Bytes are of IP packets. ``cpu_s_per_gb`` is the system's without the emulator; ``cpu_share`` is of all cores by
    whatever runs on the machine, ``cpu_share_system``, ``cpu_share_emulator`` and ``cpu_share_others`` are its parts:
    if the last one is large, the machine did other work, and the run means little.
    ``slowest_downlink_ratio`` is, for the receiver with the slowest downlink (the worst of several), its time / the
    time that its own downlink needs. ``worst_own_ratio`` and ``median_own_ratio`` are of each receiver's time / its own
    bound, which no slower receiver excuses (bench.wan.scenarios.own_bounds_s). With trouble or routers the figures are
    of the broadcasts with them, ``vs_clean`` is their median time / that of the clean ones, and a peer that joined is
    timed from its joining. ``delivered_mb_s`` is what all receivers together got, by the time of the last one. Without
    an emulator nothing counts the bytes of each node, and the figures that need it are left out.
    """
    case, counted = measured.case, measured.counted
    delivered_gb = len(case.receivers) * case.size_bytes / _GB

    def median(value: Callable[[Broadcast], float]) -> float:
        return statistics.median(map(value, counted))

    found = {
        "ratio_median": median(lambda one: one.last_s) / bound.seconds,
        "ratio_max": max(one.last_s for one in counted) / bound.seconds,
        "t_bcast_median_s": median(lambda one: one.last_s),
        "first_copy_median_s": median(lambda one: min(one.seconds.values())),
        "bound_s": bound.seconds,
        "slowest_downlink_ratio": median(lambda one: _slowest_downlink_ratio(case, one)),
        "worst_own_ratio": median(lambda one: max(_own_ratios(case, one))),
        "median_own_ratio": median(lambda one: statistics.median(_own_ratios(case, one))),
        "delivered_mb_s": median(lambda one: delivered_gb * 1e3 / one.last_s),
        "cpu_s_per_gb": median(lambda one: one.cost.cpu_s / delivered_gb),
        "cpu_share": median(lambda one: one.cost.cpu_share),
        "cpu_share_system": median(lambda one: one.cost.cpu_s / one.cost.core_s),
        "cpu_share_others": median(lambda one: one.cost.others_share),
        "runs": len(counted),
        "runs_rejected": measured.rejected,
    }
    if case.emulated:
        found |= {
            "source_bytes_ratio": median(lambda one: one.cost.source_bytes / case.size_bytes),
            "all_bytes_ratio": median(lambda one: one.cost.all_bytes / case.size_bytes),
            "cpu_share_emulator": median(lambda one: one.cost.emulator_cpu_s / one.cost.core_s),
            "drops_median": median(lambda one: float(one.cost.drops)),
            "late_max_ms": max(one.cost.late_max_ms for one in counted),
        }
    return found | _reported(counted) | _beside_clean(measured, bound)


def _own_ratios(case: Case, one: Broadcast) -> list[float]:
    """Return each receiver's time divided by its own bound, in no order."""
    bounds_s = own_bounds_s(case.size_bytes, case.nodes)
    return [seconds / bounds_s[number] for number, seconds in one.seconds.items()]


def _slowest_downlink_ratio(case: Case, one: Broadcast) -> float:
    slowest_mbit_s = min(case.nodes[number].down_mbit_s for number in one.seconds)
    own_s = case.size_bytes * BITS_PER_BYTE / 1e6 / slowest_mbit_s
    return (
        max(one.seconds[number] for number in one.seconds if case.nodes[number].down_mbit_s == slowest_mbit_s) / own_s
    )


def _reported(counted: Sequence[Broadcast]) -> dict[str, float]:
    seconds = [one.reported_s for one in counted if one.reported_s is not None]
    return {"t_bcast_reported_s": statistics.median(seconds)} if seconds else {}


def _beside_clean(measured: Measured, bound: Bound) -> dict[str, float]:
    trouble = measured.case.trouble
    if not measured.clean:
        return {}
    clean_s = statistics.median(one.last_s for one in measured.clean)
    found = {
        "clean_t_bcast_median_s": clean_s,
        "clean_ratio_median": clean_s / bound.seconds,
        "clean_runs": len(measured.clean),
        "vs_clean": statistics.median(one.last_s for one in measured.counted) / clean_s,
    }
    if trouble is not None and trouble.what == "joins":
        found["joiner_median_s"] = statistics.median(one.seconds[trouble.node] for one in measured.counted)
    return found


def measure(system: System, case: Case, bound: Bound, runs: int) -> Measured:
    """Measure ``runs`` broadcasts in which the emulator kept up, and count those that were rejected on the way."""
    counted: list[Broadcast] = []
    clean: list[Broadcast] = []
    rejected = 0
    broadcasts = cast(Generator[Broadcast, None, None], system.broadcasts(case))
    with contextlib.closing(broadcasts):
        for one in broadcasts:
            print(_line(one, case, bound), file=sys.stderr)
            if not one.cost.valid:
                rejected += 1
            elif one.troubled or case.trouble is None:
                counted.append(one)
            else:
                clean.append(one)
            if len(counted) >= runs or len(counted) + rejected >= runs * _ATTEMPTS_PER_RUN:
                break
    if not counted:
        raise ProcessFailed(
            f"none of the {rejected} runs counts",
            cause=f"the network emulator was late by more than {LATE_MS_MAX:g} ms in each: the processor is full",
            fix="lower the rates (--scale 0.25), or stop other programs",
        )
    return Measured(case, tuple(counted), tuple(clean), rejected)


def _line(one: Broadcast, case: Case, bound: Bound) -> str:
    """Format one run for a person to read: the time of all, then each receiver's seconds."""
    by_node = " ".join(f"{one.seconds[number]:.1f}" for number in sorted(one.seconds))
    rejected = "" if one.cost.valid else "  REJECTED"
    trouble = f"node {case.trouble.node} {case.trouble.what}: " if one.troubled and case.trouble is not None else ""
    return (
        f"{trouble}{one.last_s:.2f} s = {one.last_s / bound.seconds:.2f} x bound, source sent "
        f"{one.cost.source_bytes / case.size_bytes:.2f} x, {one.cost.drops} drops, cpu {one.cost.cpu_s:.1f} s "
        f"(machine {one.cost.cpu_share:.0%} busy), emulator late {one.cost.late_max_ms:.1f} ms{rejected}; "
        f"each receiver: {by_node}"
    )


@contextlib.contextmanager
def working_folder(keep: Path | None) -> Iterator[Path]:
    """Provide a folder in memory; configurations and logs are copied to ``keep`` afterwards."""
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
def ended_by_sigterm() -> Iterator[None]:
    """End this process at SIGTERM as at Ctrl-C, so that namespaces and processes are removed."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
