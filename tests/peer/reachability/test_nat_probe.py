"""Test the probe on loopback, with older coordinators, and through real routers between namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.systems.base import ROOT, Lines
from bench.wan import build
from bench.wan.network import Network
from bench.wan.scenarios import Nat, Node
from peer.reachability import nat_probe
from peer.reachability.link_speed import InviteHttp
from peer.reachability.nat_kind import Seen, nat_kind
from peer.reachability.nat_probe import seen_from_outside
from rollcast.runtime.errors import RollcastError
from tests.coordinator.running import changed, running

needs_network = pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())
_READY_S = 120.0

_COORDINATOR = """
import asyncio, sys
from pathlib import Path
from tests.coordinator.running import changed, running

async def serve():
    async with running(Path(sys.argv[2]), changed(serve={"host": sys.argv[1]})) as run:
        print("invite", run.invite("peer").encode(), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(serve())
"""

_MACHINE = """
import asyncio, sys
from peer.reachability.link_speed import InviteHttp
from peer.reachability.nat_kind import nat_kind
from peer.reachability.nat_probe import seen_from_outside
from peer.donor.check.dial_back import dialled_back
from rollcast.wire.joining.invite import Invite

async def look():
    async with InviteHttp(Invite.decode(sys.argv[1])) as door:
        dialled = await dialled_back(door, 7420)
        seen = await seen_from_outside(door)
        print("kind", nat_kind(seen, dialled=dialled.reached), seen.local, seen.address, flush=True)

asyncio.run(look())
"""


async def test_on_one_machine_there_is_no_router(tmp_path: Path) -> None:
    async with running(tmp_path) as run, InviteHttp(run.invite("peer")) as door:
        seen = await seen_from_outside(door)
        assert seen == Seen("127.0.0.1", "127.0.0.1", seen.port, seen.port, True)
        assert nat_kind(seen, dialled=True) == "open"


async def test_over_tls_and_with_the_second_port_taken(tmp_path: Path, unused_tcp_port: int) -> None:
    serve = {"host": "0.0.0.0", "advertise_host": "127.0.0.1", "observe_port": unused_tcp_port}
    async with running(tmp_path, changed(serve=serve)) as run, InviteHttp(run.invite("peer")) as door:
        first = await seen_from_outside(door)
        assert first.second_port == first.port
        with nat_probe._bound(socket.AF_INET, unused_tcp_port) as taken:
            taken.listen()
            assert (await seen_from_outside(door)).second_port is None


async def test_a_coordinator_without_the_probe_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as run, InviteHttp(run.invite("peer")) as door:
        options = door.options
        for other in ("nothing", "up"):
            monkeypatch.setattr(door, "options", lambda _, path=other: options(f"/api/v1/speed/{path}"))
            with pytest.raises(RollcastError):
                await seen_from_outside(door)


@needs_network
def test_each_kind_of_router_is_recognised(tmp_path: Path) -> None:
    kinds: tuple[Nat | None, ...] = (None, "full-cone", "port-restricted", "symmetric")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment, "cwd": ROOT}
    with Network([Node(80, 80, 2), *(Node(80, 80, 2, kind) for kind in kinds)]) as network:
        lines = Lines()
        command = [sys.executable, "-c", _COORDINATOR, network.addresses[0], str(tmp_path)]
        lines.follow(0, network.spawn(0, command, **pipes))
        invite = lines.count("invite", 1, _READY_S)[0]
        for number in range(1, len(network.names)):
            lines = Lines()  # one after the other: few are served at once
            lines.follow(number, network.spawn(number, [sys.executable, "-c", _MACHINE, invite], **pipes))
            kind, local, address = lines.count("kind", 1, _READY_S)[number].split()
            assert (local, address) == (network.inside[number], network.addresses[number])
            assert kind == (kinds[number - 1] or "open")
