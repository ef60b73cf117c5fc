"""Broadcast with an HTTP server at the source and a download by each peer: nginx and curl, then sha256sum."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.systems.base import Broadcast, Case, check_copies, write_payload
from bench.wan.meter import Meter
from bench.wan.network import Network
from rollcast.runtime.errors import WaitTimedOut

_TOOLS = {"nginx": "nginx-light", "curl": "curl"}
_SERVER_START_S = 0.5
_POLL_S = 0.005
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_CONFIGURATION = """daemon off; user root; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 512; }}
http {{ access_log off; sendfile on; tcp_nopush on; {temporary}
 server {{ listen {address}:80; root {folder}/source; }} }}
"""


def missing() -> str:
    """Return the tools that are not installed."""
    absent = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    return f"apt-get install {' '.join(absent)}" if absent else ""


def broadcasts(case: Case) -> Iterator[Broadcast]:
    """Yield broadcasts, each in a new network; each download has a new connection, as curl makes it.

    Raises:
        WaitTimedOut: a broadcast did not end in time.
        ProcessFailed: a download or a check failed.
    """
    while True:
        with Network(case.nodes, case.sockets) as network:
            yield _broadcast(network, case)


def _broadcast(network: Network, case: Case) -> Broadcast:
    source = case.folder / "source"
    source.mkdir(exist_ok=True)
    digest = write_payload(source / "payload", case.size_bytes)
    server = _serve(network, case.folder)
    copies = {number: case.folder / f"copy-{number}" for number in case.receivers}
    for path in copies.values():
        path.unlink(missing_ok=True)
    url = f"http://{network.addresses[0]}/payload"
    meter, started_s = Meter(network), time.monotonic()
    downloads: dict[int, subprocess.Popen[Any]] = {}
    for number, path in copies.items():
        command = (
            f"curl -sf --max-time {case.limit_s} -o {path} {url} && echo '{digest}  {path}' | sha256sum -c --quiet"
        )
        downloads[number] = network.spawn(number, ["sh", "-c", command])
    seconds: dict[int, float] = {}
    while len(seconds) < len(downloads):
        for number, process in downloads.items():
            if number not in seconds and network.has_ended(process):
                seconds[number] = time.monotonic() - started_s
        if time.monotonic() - started_s > case.limit_s:
            raise WaitTimedOut(f"waited {case.limit_s:.0f} s for {len(downloads)} downloads")
        time.sleep(_POLL_S)
    cost = meter.read()
    network.reap(server, signal.SIGQUIT)
    check_copies(copies, digest)
    return Broadcast(seconds, cost)


def _serve(network: Network, folder: Path) -> subprocess.Popen[Any]:
    temporary = " ".join(f"{name}_temp_path {folder}/tmp-{name};" for name in _TEMPORARY)
    text = _CONFIGURATION.format(folder=folder, temporary=temporary, address=network.addresses[0])
    (folder / "nginx.conf").write_text(text)
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "nginx.err")]
    server = network.spawn(0, command)
    time.sleep(_SERVER_START_S)
    return server
