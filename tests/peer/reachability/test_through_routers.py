"""Test that peers behind real routers find out how they are reached, and by which peers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.systems.base import ROOT, Lines
from bench.wan import build
from bench.wan.network import Network
from bench.wan.scenarios import Nat, Node

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())]
_READY_S = 90.0
_KINDS: tuple[Nat | None, ...] = (None, None, "port-restricted", "symmetric")
_PORT = 7420

_COORDINATOR = """
import asyncio, sys
from pathlib import Path
from coordinator.core.traversal import dial_backs
from tests.coordinator.running import changed, running

async def serve():
    dial_backs.FIRST_AFTER_S = dial_backs.AGAIN_AFTER_FAILURE_S = 1.0
    changes = changed(serve={"host": sys.argv[1]}, relay={"lan_preferred": False})
    async with running(Path(sys.argv[2]), changes) as run:
        print("invite", run.invite("origin").encode(), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(serve())
"""

_PEER = """
import asyncio, json, sys
from pathlib import Path
from peer.config import PeerConfig
from peer.service import run
from rollcast.runtime.errors import DaemonAway
from rollcast.wire.donor.control_socket import request

async def tell(folder):
    said = None
    while True:
        await asyncio.sleep(0.2)
        try:
            reach = (await asyncio.to_thread(request, folder, {"do": "status"}))["reach"]
        except DaemonAway:
            continue
        if reach != said:
            said = reach
            print("reach", json.dumps(reach), flush=True)

async def main():
    folder = Path(sys.argv[3])
    link = {"host": "0.0.0.0", "port": 7420, "advertise": sys.argv[2]}
    config = PeerConfig(role="origin", invite=sys.argv[1], state_folder=folder, link=link)
    telling = asyncio.create_task(tell(folder))
    await run(config, asyncio.Event())

asyncio.run(main())
"""


def _through(checked: str) -> str:
    """Return how many peers reached this one (all, none, some), or the text if it is of another form."""
    found = re.match(r"(\d) of ([2-4]) got through", checked)
    if found is None:
        return checked
    return "all" if found[1] == found[2] else "none" if found[1] == "0" else "some"


def _until(lines: Lines, wanted: dict[int, tuple[str, str, str]]) -> dict[int, dict[str, Any]]:
    """Return each peer's report once all are as expected: reachability, kind of router, peers that reached it."""
    said: dict[int, dict[str, Any]] = {}
    end = time.monotonic() + _READY_S
    while True:
        number, line = lines.next(f"{wanted}, after {said}", end - time.monotonic())
        word, _, rest = line.partition(" ")
        if word == "reach":
            said[number] = json.loads(rest)
        told = {key: (one["reachability"], one["nat"], _through(one["checked"])) for key, one in said.items()}
        if told == wanted:
            return said


def test_each_peer_learns_which_peers_reach_it(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment, "cwd": ROOT}
    with Network([Node(80, 80, 2), *(Node(80, 80, 2, kind) for kind in _KINDS)]) as network:
        lines = Lines()
        command = [sys.executable, "-c", _COORDINATOR, network.addresses[0], str(tmp_path / "coordinator")]
        lines.follow(0, network.spawn(0, command, **pipes))
        invite = lines.count("invite", 1, _READY_S)[0]
        for number in range(1, len(network.names)):
            advertise = "none" if number == 4 else f"{network.addresses[number]}:{_PORT}"
            arguments = [invite, advertise, str(tmp_path / f"peer-{number}")]
            lines.follow(number, network.spawn(number, [sys.executable, "-c", _PEER, *arguments], **pipes))
        said = _until(
            lines,
            {
                1: ("dialable", "open", "all"),
                2: ("dialable", "open", "all"),
                3: ("hole-punchable", "port-restricted", "none"),
                4: ("only outwards", "symmetric", ""),
            },
        )
        assert said[3]["checked"].endswith(f"{network.addresses[3]}:{_PORT}: no answer")
