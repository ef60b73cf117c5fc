"""Broadcast with aria2 as a BitTorrent client, its peers found through a tracker at the source, pieces checked."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.systems import libtorrent
from bench.systems.base import ROOT, Broadcast, Case, check_copies, prepare_nodes
from bench.wan.meter import Meter
from bench.wan.network import Network
from rollcast.runtime.errors import WaitTimedOut

TRACKER_PORT = 6969
_PORT = 6881
PIECE_BYTES = 256 << 10
_TRACKER_START_S = 0.4
_SEED_START_S = 2.0  # by then the seeder listens and has announced itself
_POLL_S = 0.005
_OPTIONS = (
    *("--no-conf", "--seed-ratio=0", "--enable-dht=false", "--bt-enable-lpd=false", "--enable-peer-exchange=false"),
    *("--bt-max-peers=0", "--file-allocation=none", "--bt-request-peer-speed-limit=1000M", "--bt-tracker-interval=2"),
    *("--check-integrity=false", "--allow-overwrite=true", "--disable-ipv6=true"),
    *("--console-log-level=warn", "--summary-interval=0"),
)


def missing() -> str:
    """Return what is not installed: aria2c, or libtorrent, which makes the torrent."""
    return "apt-get install aria2" if shutil.which("aria2c") is None else libtorrent.missing()


def broadcasts(case: Case) -> Iterator[Broadcast]:
    """Yield broadcasts, each in a new network; the clock starts when the receivers are started.

    Raises:
        WaitTimedOut: a broadcast did not end in time.
        ProcessFailed: a copy is wrong.
    """
    while True:
        with Network(case.nodes, case.sockets) as network:
            yield _broadcast(network, case)


def _broadcast(network: Network, case: Case) -> Broadcast:
    folders, payload, digest = prepare_nodes(case)
    torrent = case.folder / "payload.torrent"
    tracker_url = f"http://{network.addresses[0]}:{TRACKER_PORT}/announce"
    libtorrent.make_torrent(payload, torrent, PIECE_BYTES, tracker_url)
    tracker = [sys.executable, str(ROOT / "bench" / "programs" / "tracker.py"), network.addresses[0]]
    processes = [network.spawn(0, tracker)]
    time.sleep(_TRACKER_START_S)
    processes.append(_start(network, 0, folders[0], torrent))
    time.sleep(_SEED_START_S)
    meter, started_s, started_at = Meter(network), time.monotonic(), time.time()
    processes += [_start(network, number, folders[number], torrent) for number in case.receivers]
    seconds = _wait(folders, case, started_s, started_at)
    cost = meter.read()
    for process in processes:
        network.reap(process, signal.SIGTERM)
    check_copies({number: folders[number] / "payload" for number in case.receivers}, digest)
    return Broadcast(seconds, cost)


def command(folder: Path, torrent: Path, port: int, *, seeds: bool) -> list[str]:
    """Return the command of an aria2 that touches ``done`` in its folder once it holds and has checked every piece."""
    hook = folder / "hook.sh"
    hook.write_text(f"#!/bin/sh\n: > {folder}/done\n")
    hook.chmod(0o755)
    trust = "--bt-seed-unverified=true" if seeds else "--bt-hash-check-seed=false"
    options = (*_OPTIONS, trust, f"--listen-port={port}", f"--dir={folder}", f"--on-bt-download-complete={hook}")
    return ["aria2c", *options, str(torrent)]


def _start(network: Network, number: int, folder: Path, torrent: Path) -> subprocess.Popen[Any]:
    started = command(folder, torrent, _PORT, seeds=number == 0)
    return network.spawn(number, started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait(folders: list[Path], case: Case, started_s: float, started_at: float) -> dict[int, float]:
    seconds: dict[int, float] = {}
    while len(seconds) < len(case.receivers):
        for number in case.receivers:
            stamp = folders[number] / "done"
            if number not in seconds and stamp.exists():
                seconds[number] = stamp.stat().st_mtime - started_at
        if time.monotonic() - started_s > case.limit_s:
            raise WaitTimedOut(f"waited {case.limit_s:.0f} s for {len(case.receivers)} downloads")
        time.sleep(_POLL_S)
    return seconds
