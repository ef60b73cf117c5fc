"""Define the options of benchmarks that watch a long fleet, and start the fleet that they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.broadcast.broadcast import ended_by_sigterm, working_folder
from bench.longrun.fleet import LongFleet, long_fleet
from peer.p2p.transport import host_thread_class

_KIB = 1024
_SETTINGS = ("peers", "interval", "kib", "set")


def add_fleet_arguments(parser: argparse.ArgumentParser, *, interval_s: float) -> None:
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--interval", type=float, default=interval_s, help="seconds between two versions")
    parser.add_argument("--kib", type=int, default=256, help="size of a version")
    parser.add_argument("--set", action="append", default=[], help="as for the benchmark broadcast")
    parser.add_argument("--keep", type=Path, help="copy configurations, logs and counts to this folder")


@contextmanager
def fleet_of(arguments: argparse.Namespace, *, p2p: bool) -> Iterator[LongFleet]:
    """Start the fleet that these options ask for.

    Args:
        p2p: whether links also run over libp2p.

    Raises:
        ConfigError: a setting is wrong.
        MissingExtra: libp2p is wanted and not installed; see also bench.wan.build.
        ProcessFailed, WaitTimedOut: a process does not start.
    """
    if p2p:
        host_thread_class()
    settings = (*(("peer.link.p2p=true",) if p2p else ()), *arguments.set)
    with (
        ended_by_sigterm(),
        working_folder(arguments.keep) as folder,
        long_fleet(
            arguments.peers,
            folder,
            size_bytes=arguments.kib * _KIB,
            interval_s=arguments.interval,
            settings=settings,
        ) as fleet,
    ):
        yield fleet


def asked(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the settings to report: these options, and those of the fleet."""
    return {name: getattr(arguments, name) for name in (*names, *_SETTINGS)}
