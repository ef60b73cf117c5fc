"""Broadcast with SHARDCAST (arXiv 2505.07291, PyPI shardcast): origin, two relays, clients; relays receive too."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.systems.base import ROOT, Broadcast, Case, Lines, check_copies, lacks_module, prepare_nodes, python_with
from bench.wan.meter import Meter
from bench.wan.network import Network

RELAYS = 2
_START_TIMEOUT_S = 40.0
_NODE = ROOT / "bench" / "programs" / "shardcast_node.py"
#: Smaller shards than the default 50 MB, with which a payload would be one shard; retries without the 15 s back-off.
_SETTINGS = {
    "SHARDCAST_SHARD_SIZE": "4000000",
    "SHARDCAST_FAST_RETRY_INTERVAL": "1",
    "SHARDCAST_FAST_RETRY_ATTEMPTS": "1000",
    "SHARDCAST_RETRY_ATTEMPTS": "1000",
}


def missing() -> str:
    """Return how to install shardcast; empty when it can be imported."""
    return lacks_module("shardcast")


def broadcasts(case: Case) -> Iterator[Broadcast]:
    """Yield broadcasts, each in a new network with new processes.

    Raises:
        WaitTimedOut: a broadcast did not end in time.
        ProcessFailed: a node ended, or a copy is wrong.
    """
    while True:
        with Network(case.nodes, case.sockets) as network:
            yield _broadcast(network, case)


def _broadcast(network: Network, case: Case) -> Broadcast:
    folders, payload, digest = prepare_nodes(case)
    lines = Lines()
    processes: list[subprocess.Popen[Any]] = []
    for number, folder in enumerate(folders):
        processes.append(_start(network, number, folder, payload))
        lines.follow(number, processes[-1])
        if number <= RELAYS:  # the origin and the relays must be up before a node asks them
            lines.count("ready", 1, _START_TIMEOUT_S)
    lines.count("ready", len(folders) - RELAYS - 1, _START_TIMEOUT_S)
    origin = processes[0].stdin
    assert origin is not None
    meter, started_s = Meter(network), time.monotonic()
    origin.write("go\n")
    origin.flush()
    done = lines.count("done", len(case.receivers), case.limit_s)
    cost = meter.read()
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        network.reap(process)
    check_copies({number: folders[number] / "payload" for number in case.receivers}, digest)
    seconds = {number: float(text) - started_s for number, text in done.items()}
    return Broadcast(seconds, cost)


def _start(network: Network, number: int, folder: Path, payload: Path) -> subprocess.Popen[Any]:
    role = "origin" if number == 0 else "middle" if number <= RELAYS else "client"
    asked = network.addresses[:1] if number <= RELAYS else network.addresses[1 : RELAYS + 1]
    servers = ",".join(f"http://{address}:8000" for address in asked)
    command = [python_with(), str(_NODE), role, str(folder), servers, str(payload)]
    with (folder / "log").open("wb") as log:
        environment = os.environ | _SETTINGS
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        return network.spawn(number, command, env=environment, cwd=folder, **options)
