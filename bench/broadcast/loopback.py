"""Measure what a version costs from a real origin to a real peer over loopback, beside nginx, aria2 and libtorrent.

TLS, hashing and the store are on; the processor time of both ends counts, from the announcement until the peer holds
the version. The rounds of all systems are interleaved, so that other load on the machine affects all of them alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.broadcast.broadcast import ended_by_sigterm, working_folder
from bench.machine import Outcome, alone
from bench.systems import aria2, libtorrent, loopback
from bench.systems.base import Case
from bench.systems.loopback import Transfer
from bench.wan.network import Sockets
from bench.wan.scenarios import Node

_GB = 1e9
_NODES = (Node(0.0, 0.0, 0.0),) * 2  # loopback: no emulated link
_SETTLE_S = 1.0
_CHUNK_BYTES = {"1mib": 1 << 20, "64kib": 64 << 10}

Transfers = Callable[[Case, int], Iterator[Transfer]]
#: Key -> the system's transfers, and what says which of its parts are not installed.
_OTHERS: dict[str, tuple[Transfers, Callable[[], str]]] = {
    "nginx_tls": (loopback.nginx, loopback.nginx_missing),
    "aria2": (loopback.aria2_pair, aria2.missing),
    "libtorrent": (loopback.libtorrent_pair, libtorrent.missing),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=256, help="size of each transfer")
    parser.add_argument("--runs", type=int, default=5, help="transfers of each system; figures are medians")
    parser.add_argument(
        "--only", default="", help="systems to measure, with commas between: 1mib, 64kib, nginx_tls ..."
    )
    parser.add_argument("--limit-s", type=float, default=120.0, help="seconds after which a transfer has failed")
    parser.add_argument("--keep", type=Path, help="copy configurations and logs to this folder")


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure all systems that are installed.

    Raises:
        RollcastError: a transfer failed.
    """
    wanted = [name for name in arguments.only.split(",") if name]
    lacking = {name: missing() for name, (_, missing) in _OTHERS.items() if not wanted or name in wanted}
    missing = [name for name, what in lacking.items() if what]
    for name in missing:
        print(f"{name} is not measured: {lacking[name]}", file=sys.stderr)
    systems: dict[str, tuple[Transfers, int]] = {name: (loopback.rollcast, size) for name, size in _CHUNK_BYTES.items()}
    systems |= {name: (transfers, 0) for name, (transfers, _) in _OTHERS.items()}
    names = [name for name in systems if name not in missing and (not wanted or name in wanted)]
    measured: dict[str, list[Transfer]] = {name: [] for name in names}
    with ended_by_sigterm(), alone(), ExitStack() as stack:
        running = {}
        for place, name in enumerate(names):
            folder = stack.enter_context(working_folder(arguments.keep and arguments.keep / name))
            transfers, chunk_bytes = systems[name]
            running[name] = transfers(_case(arguments, folder, chunk_bytes), _network(place))
            stack.callback(running[name].close)  # type: ignore[attr-defined]  # a generator
        for _ in range(arguments.runs):
            for name in names:
                measured[name].append(one := next(running[name]))
                print(f"{name}: {_cpu_s_per_gb(one, arguments.mib):.2f} CPU s/GB, {one.seconds:.2f} s", file=sys.stderr)
    settings = {"mib": arguments.mib, "runs": arguments.runs}
    return Outcome(settings, figures(measured, arguments.mib), tuple(_key(name) for name in missing))


def figures(measured: dict[str, list[Transfer]], mib: int) -> dict[str, float]:
    """Return the median processor seconds per GB of each system, and the rate of chunks of 1 MiB in MB/s.

    ``*_vs_1mib`` is a system's processor time / that of chunks of 1 MiB, the median of the rounds' ratios.
    """
    found = {
        _key(name): statistics.median(_cpu_s_per_gb(one, mib) for one in transfers)
        for name, transfers in measured.items()
    }
    ours = measured.get("1mib", [])
    if ours:
        found["mb_s"] = statistics.median(mib * 1.048576 / one.seconds for one in ours)
        found["mb_s_best"] = max(mib * 1.048576 / one.seconds for one in ours)
    for name, transfers in measured.items():
        if ours and name != "1mib":
            pairs = zip(transfers, ours, strict=True)
            found[f"{name}_vs_1mib"] = statistics.median(theirs.cpu_s / own.cpu_s for theirs, own in pairs)
    return found


def _key(name: str) -> str:
    return f"cpu_s_per_gb_{name}" if name in _CHUNK_BYTES else f"{name}_cpu_s_per_gb"


def _cpu_s_per_gb(one: Transfer, mib: int) -> float:
    return one.cpu_s / (mib * (1 << 20) / _GB)


def _network(place: int) -> int:
    """Return a part of the loopback network that no other system here and hardly another benchmark uses."""
    return 1 + (os.getpid() + place) % 250


def _case(arguments: argparse.Namespace, folder: Path, chunk_bytes: int) -> Case:
    settings = (f"learner.publish.chunk_size_bytes={chunk_bytes}",) if chunk_bytes else ()
    size_bytes = arguments.mib << 20
    return Case(_NODES, size_bytes, Sockets(), folder, arguments.limit_s, settle_s=_SETTLE_S, settings=settings)
