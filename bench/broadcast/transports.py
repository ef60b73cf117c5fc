"""Compare the transports of chunks between two processes: raw sockets, direct links (TLS) and p2p links (libp2p).

The links run on loopback, or with --wan over an emulated link between two network namespaces. The rounds of the three
transports are interleaved, so that other load on the machine affects all of them alike. ``mb_s_*`` is one link's rate,
slow start included, ``mb_s_steady_*`` that of the second half of the transfer, ``mb_per_core_s_*`` is MB per second of
processor time of both ends together; ``p2p_direct_ratio`` is the ratio of the rates.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.machine import Outcome, alone
from bench.wan.network import Network, Sockets
from bench.wan.scenarios import Node
from rollcast.runtime.errors import ProcessFailed
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import RunId

WAYS = ("raw", "direct", "p2p")
_PROGRAM = "bench.broadcast.transports_end"
_ENDS = ("listen", "dial")
_TIMEOUT_S = 130.0


@dataclass(frozen=True, slots=True)
class Round:
    """One transfer: its MB/s in total and in the second half, and its MB per second of both ends' processor time."""

    mb_s: float
    steady_mb_s: float
    mb_per_core_s: float


class _Loopback:
    """The machine itself: both ends run on loopback."""

    host = "127.0.0.1"

    def spawn(self, _end: int, arguments: list[str]) -> subprocess.Popen[Any]:
        return subprocess.Popen(_command(arguments), stdout=subprocess.PIPE, text=True)

    def reap(self, process: subprocess.Popen[Any]) -> None:
        """Wait without a limit until the process ends: it has a deadline of its own."""
        with process:
            process.wait(_TIMEOUT_S)


class _Emulated(_Loopback):
    """An emulated link: each end runs in a network namespace of its own."""

    def __init__(self, network: Network) -> None:
        self.host = network.addresses[0]
        self._network = network

    def spawn(self, end: int, arguments: list[str]) -> subprocess.Popen[Any]:
        return self._network.spawn(end, _command(arguments), stdout=subprocess.PIPE, text=True)

    def reap(self, process: subprocess.Popen[Any]) -> None:
        self._network.reap(process, grace_s=_TIMEOUT_S)
        process.stdout.close()  # type: ignore[union-attr]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=64, help="MiB sent in each round, in chunks of 64 KiB")
    parser.add_argument("--rounds", type=int, default=3, help="per way; figures are of the median rate")
    parser.add_argument(
        "--wan", metavar="MBIT:MS", default="", help="use a link of this rate and round trip instead of loopback"
    )
    parser.add_argument(
        "--socket-mib", type=int, default=32, help="largest buffer of a socket on that link; Linux' default is 4 to 6"
    )


def run(arguments: argparse.Namespace) -> Outcome:
    missing = () if importlib.util.find_spec("libp2p") else ("p2p",)
    ways = [way for way in WAYS if way not in missing]
    settings = {name: getattr(arguments, name) for name in ("mib", "rounds", "wan", "socket_mib")}
    rounds: dict[str, list[Round]] = {way: [] for way in ways}
    with ExitStack() as stack:
        stack.enter_context(alone())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_ends(folder, _ENDS)
        place = _Loopback()
        if arguments.wan:
            place = _Emulated(stack.enter_context(_network(arguments.wan, arguments.socket_mib)))
        for _ in range(arguments.rounds):
            for way in ways:
                rounds[way].append(_round(place, folder, way, arguments.mib))
    figures = {key: value for way in ways for key, value in _figures(way, rounds[way]).items()}
    if not missing:
        figures["p2p_direct_ratio"] = figures["mb_s_p2p"] / figures["mb_s_direct"]
    if arguments.wan:
        link_mb_s = float(arguments.wan.partition(":")[0]) / 8
        for what in ("", "steady_"):
            figures |= {f"link_share_{what}{way}": figures[f"mb_s_{what}{way}"] / link_mb_s for way in ways}
    return Outcome(settings, figures, tuple(f"mb_s_{way}" for way in missing))


def _figures(way: str, rounds: list[Round]) -> dict[str, float]:
    return {
        f"mb_s_{way}": _middle(one.mb_s for one in rounds),
        f"mb_s_best_{way}": max(one.mb_s for one in rounds),
        f"mb_s_steady_{way}": _middle(one.steady_mb_s for one in rounds),
        f"mb_per_core_s_{way}": _middle(one.mb_per_core_s for one in rounds),
    }


def _middle(values: Iterable[float]) -> float:
    return statistics.median_high(values)  # a measured value, not a mean of two


def _round(place: _Loopback, folder: Path, way: str, mib: int) -> Round:
    arguments = [str(folder), way, str(mib), place.host]
    with ExitStack() as stack:
        listening = place.spawn(0, ["listen", *arguments])
        stack.callback(place.reap, listening)
        address = _line(listening)["address"]
        dialling = place.spawn(1, ["dial", *arguments, str(address)])
        stack.callback(place.reap, dialling)
        dialled, listened = _line(dialling), _line(listening)
    megabytes = mib * 1.048576
    cpu_s = dialled["cpu_s"] + listened["cpu_s"]
    return Round(megabytes / dialled["seconds"], listened["steady_bytes_per_second"] / 1e6, megabytes / cpu_s)


def _line(process: subprocess.Popen[Any]) -> dict[str, Any]:
    out: IO[str] = process.stdout  # type: ignore[assignment]
    line = out.readline()
    if not line:
        raise ProcessFailed(f"{_PROGRAM} ended without a figure")
    told: dict[str, Any] = json.loads(line)
    return told


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", _PROGRAM, *arguments]


def _network(wan: str, socket_mib: int) -> Network:
    mbit_s, _, round_trip_ms = wan.partition(":")
    nodes = [Node(float(mbit_s), float(mbit_s), float(round_trip_ms) / 4)] * 2
    return Network(nodes, Sockets(memory_mib_max=socket_mib))


def make_ends(folder: Path, names: Iterable[str]) -> None:
    """Write the identity and certificate of each end into a folder of its name."""
    run_id = RunId("bench")
    ca = RunCA.create(folder / "ca", run_id)
    for name in names:
        identity = Identity.load_or_create(folder / name / "identity.pem")
        key = new_tls_key()
        pem = ca.issue(key.csr_pem(), peer_id=identity.peer_id, role="peer", lifetime_s=3600.0)
        TlsCredentials(ca.certificate_pem, pem, key.private_pem).save(folder / name)
