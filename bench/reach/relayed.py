"""Measure a relayed link: two homes behind routers that cannot dial each other, and a third peer as relay (libp2p).

The dial times cover everything until the link is open: connection to the relay, circuit, two handshakes within it.
``mb_s`` is the rate in megabytes per second; ``mb_per_core_s`` is megabytes per second of processor time, that of both
ends and the relay together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

from bench.broadcast.transports import make_ends
from bench.machine import Outcome, alone
from bench.wan import build
from bench.wan.network import Network
from bench.wan.scenarios import Nat, Node
from rollcast.runtime.errors import ProcessFailed

KINDS: tuple[Nat, ...] = get_args(Nat)
_PROGRAM = "bench.reach.relayed_end"
_WHO = ("relay", "answer", "ask")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tries", type=int, default=10, help="number of dials, each by a new host")
    parser.add_argument("--nat", choices=KINDS, default="symmetric", help="kind of both homes' routers")
    parser.add_argument("--delay", type=float, default=15.0, help="milliseconds, one way, from each home to the middle")
    parser.add_argument("--mib", type=int, default=32, help="MiB sent over the last link")


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure the seconds of the dials, and the rate of the last link.

    Raises:
        MissingExtra: see bench.wan.build.
        ProcessFailed: one of the three ended early.
    """
    build.require()
    with alone():
        figures = measured(arguments.nat, arguments.delay, arguments.tries, arguments.mib)
    return Outcome({name: getattr(arguments, name) for name in ("tries", "nat", "delay", "mib")}, figures)


def measured(nat: Nat, delay_ms: float, tries: int, mib: int) -> dict[str, float]:
    """Return the figures of one relay and two homes.

    Raises:
        ProcessFailed: one of the three ended early.
    """
    home = Node(480, 480, delay_ms, nat)
    with tempfile.TemporaryDirectory() as name, Network([Node(480, 480, 5), home, home]) as network:
        make_ends(Path(name), _WHO)
        dials, moved, others_s = _dialled(network, Path(name), tries, mib)
    megabytes = mib * 1.048576
    return {
        "through": len(dials) / tries,
        "dial_median_s": statistics.median(dials),
        "dial_max_s": max(dials),
        "mb_s": megabytes / moved["seconds"],
        "mb_per_core_s": megabytes / (others_s + moved["cpu_s"]),
    }


def _dialled(network: Network, folder: Path, tries: int, mib: int) -> tuple[list[float], dict[str, float], float]:
    """Return the seconds of each relayed dial, what sending took the asking end, and the others' processor seconds."""
    relay = _start(network, 0, ["relay", str(folder), network.inside[0]])
    address = str(_line(relay)["address"])
    answer = _start(network, 1, ["answer", str(folder), network.inside[1], address, "0", str(mib)])
    circuit = str(_line(answer)["address"])
    ask = _start(network, 2, ["ask", str(folder), network.inside[2], circuit, str(tries), str(mib)])
    dials = [_line(ask) for _ in range(tries)]
    before_s = network.cpu_s()
    moved = _line(ask)
    others_s = network.cpu_s() - before_s - moved["cpu_s"]
    for process in (ask, answer, relay):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        network.reap(process)
        process.stdout.close()
    return [one["dialled_s"] for one in dials if one["transport"] == "relayed"], moved, max(0.0, others_s)


def _start(network: Network, node: int, arguments: list[str]) -> subprocess.Popen[Any]:
    command = [sys.executable, "-m", _PROGRAM, *arguments]
    return network.spawn(node, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[Any]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):  # other lines are its log
            answer: dict[str, Any] = json.loads(line)
            return answer
    raise ProcessFailed(f"{_PROGRAM} ended without a figure")
