"""Broadcast with libtorrent in the profile ``stock`` or ``tuned``, without a tracker: every pair connects at once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.systems.base import ROOT, Broadcast, Case, Lines, check_copies, lacks_module, prepare_nodes, python_with
from bench.wan.meter import Meter
from bench.wan.network import Network

PIECE_BYTES = {"stock": 256 << 10, "tuned": 64 << 10}
_START_TIMEOUT_S = 30.0
_NODE = ROOT / "bench" / "programs" / "libtorrent_node.py"
_MAKE = (
    "import libtorrent as lt,sys,os;b,t,p,u=sys.argv[1:];"
    "c=lt.create_torrent([lt.create_file_entry(os.path.basename(b),os.path.getsize(b))],int(p),"
    "lt.create_torrent.v1_only);lt.set_piece_hashes(c,os.path.dirname(b));"
    "u and c.add_tracker(u);open(t,'wb').write(lt.bencode(c.generate()))"
)


def missing() -> str:
    """Return how to install libtorrent; empty when it can be imported."""
    return lacks_module("libtorrent")


def broadcasts(case: Case) -> Iterator[Broadcast]:
    """Yield broadcasts with the stock profile; see broadcasts_with."""
    yield from broadcasts_with(case, "stock")


def broadcasts_with(case: Case, profile: str) -> Iterator[Broadcast]:
    """Yield broadcasts, each in a new network with new sessions.

    The clock starts when the torrent is added, before any handshake.

    Raises:
        WaitTimedOut: a broadcast did not end in time.
        ProcessFailed: a node ended, or a copy is wrong.
    """
    while True:
        with Network(case.nodes, case.sockets) as network:
            yield _broadcast(network, case, profile)


def make_torrent(payload: Path, torrent: Path, piece_bytes: int, tracker_url: str = "") -> None:
    """Write the torrent file of one payload."""
    command = [python_with(), "-c", _MAKE, str(payload), str(torrent), str(piece_bytes), tracker_url]
    subprocess.run(command, check=True, timeout=_START_TIMEOUT_S)


def _broadcast(network: Network, case: Case, profile: str) -> Broadcast:
    folders, payload, digest = prepare_nodes(case)
    torrent, lines = case.folder / "payload.torrent", Lines()
    make_torrent(payload, torrent, PIECE_BYTES[profile])
    processes = [_start(network, number, folder, torrent, profile) for number, folder in enumerate(folders)]
    for number, process in enumerate(processes):
        lines.follow(number, process)
    lines.count("ready", len(processes), _START_TIMEOUT_S)
    meter, started_s = Meter(network), time.monotonic()
    _send_command(processes, "go")
    done = lines.count("done", len(case.receivers), case.limit_s)
    cost = meter.read()
    _send_command(processes, "quit")
    for process in processes:
        network.reap(process)
    check_copies({number: folders[number] / "payload" for number in case.receivers}, digest)
    seconds = {number: float(text) - started_s for number, text in done.items()}
    return Broadcast(seconds, cost)


def _start(network: Network, number: int, folder: Path, torrent: Path, profile: str) -> subprocess.Popen[Any]:
    """Start a node that dials the nodes with a smaller number, so that each pair has one connection."""
    role, before = "leech" if number else "seed", network.addresses[:number]
    arguments = [str(torrent), str(folder), network.addresses[number], profile, role, *before]
    command = [python_with(), str(_NODE), *arguments]
    return network.spawn(number, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _send_command(processes: list[subprocess.Popen[Any]], command: str) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{command}\n")
        process.stdin.flush()
