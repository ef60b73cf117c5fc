"""Flood a real coordinator with 200 hostile connections, and measure what honest members and its memory notice.

Honest members upload, and ask for /health, at a steady rate before and during the flood (hostile_sockets.py).
``honest_p99_ratio`` is the 99th percentile of their seconds during the flood over that before; ``rss_growth_mib`` the
coordinator's largest resident memory during the flood less that before; ``honest_failed`` counts requests without an
answer. With --honest-sessions N, ``sessions_rss_growth_mib`` is the growth of another coordinator, with which N more
honest members open sessions instead: what as many connections cost that are welcome.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench.adversary.hostile_sockets import CONNECTIONS
from bench.fleet.process import CoordinatorProcess, RunShape, wait_until_listening
from bench.machine import Outcome
from rollcast.runtime.windows import percentile_of
from rollcast.wire.identity.identity import Identity
from rollcast.wire.joining.enrol import Enrolment, enrol
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.joining.invite import Invite
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc
from rollcast.wire.protocol import range_to_pb

SECONDS, MEMBERS = 20.0, 4
_EVERY_S = 0.25  # between two requests of one member
_START_S = 300.0
_ANSWER_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to measure before, and during the flood")
    parser.add_argument("--members", type=int, default=MEMBERS, help="honest members")
    add_session_arguments(parser)


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--honest-sessions", type=int, default=0, help="measure the memory of so many members with sessions too"
    )


def run(arguments: argparse.Namespace) -> Outcome:
    with _coordinator() as (coordinator, folder):
        flooded = asyncio.run(_flood(coordinator, folder, arguments))
    if not arguments.honest_sessions:
        return flooded
    with _coordinator() as (coordinator, folder):
        growth_mib = asyncio.run(_welcome(coordinator, folder, arguments))
    settings = flooded.settings | {"honest_sessions": arguments.honest_sessions}
    return Outcome(settings, flooded.figures | {"sessions_rss_growth_mib": growth_mib})


@contextlib.contextmanager
def _coordinator() -> Iterator[tuple[CoordinatorProcess, Path]]:
    """Run a coordinator, and yield it with a folder for its members."""
    with tempfile.TemporaryDirectory() as folder:
        coordinator = CoordinatorProcess(Path(folder), Identity.generate(), RunShape())
        coordinator.start()
        try:
            wait_until_listening(coordinator, _START_S)
            yield coordinator, Path(folder)
        finally:
            coordinator.kill()


@dataclass(slots=True)
class Window:
    """What was measured in one stretch of time."""

    answered_s: list[float] = field(default_factory=list)
    failed: int = 0
    rss_bytes: list[int] = field(default_factory=list)

    def growth_mib(self, before: Window) -> float:
        """Return the largest resident memory less that of an earlier window."""
        return (max(self.rss_bytes) - max(before.rss_bytes)) / 2**20


async def _enrolled(invite: Invite, folder: Path, count: int, name: str) -> list[Enrolment]:
    return [await enrol(invite, Identity.generate(), folder / f"{name}-{number}", _ANSWER_S) for number in range(count)]


async def _flood(coordinator: CoordinatorProcess, folder: Path, arguments: argparse.Namespace) -> Outcome:
    invite = coordinator.invite("peer")
    members = await _enrolled(invite, folder, arguments.members, "honest")
    await _window(coordinator, members, invite.http_url, arguments.seconds / 4)  # what the first requests load
    before = await _window(coordinator, members, invite.http_url, arguments.seconds)
    http, control = (int(address.rpartition(":")[2]) for address in (invite.http_url, invite.grpc_address))
    with _hostile(folder, http, control, invite.encode()):
        during = await _window(coordinator, members, invite.http_url, arguments.seconds)
    p99_before_s, p99_during_s = (percentile_of(one.answered_s, 99) or 0.0 for one in (before, during))
    return Outcome(
        {"connections": CONNECTIONS, "seconds": arguments.seconds, "members": arguments.members},
        {
            "honest_p99_ratio": p99_during_s / p99_before_s,
            "honest_p99_before_ms": 1e3 * p99_before_s,
            "honest_p99_flooded_ms": 1e3 * p99_during_s,
            "honest_requests": float(len(during.answered_s)),
            "honest_failed": float(during.failed),
            "rss_growth_mib": during.growth_mib(before),
        },
    )


async def _welcome(coordinator: CoordinatorProcess, folder: Path, arguments: argparse.Namespace) -> float:
    """Return by how many MiB the coordinator grows when honest members open sessions; they enrolled before."""
    invite = coordinator.invite("peer")
    members = await _enrolled(invite, folder, arguments.members, "honest")
    others = await _enrolled(invite, folder, arguments.honest_sessions, "other")
    await _window(coordinator, members, invite.http_url, arguments.seconds / 4)
    before = await _window(coordinator, members, invite.http_url, arguments.seconds)
    async with contextlib.AsyncExitStack() as sessions:
        for other in others:
            await sessions.enter_async_context(kept_session(other, _hello()))
        during = await _window(coordinator, members, invite.http_url, arguments.seconds)
    return during.growth_mib(before)


def _hello() -> pb.Hello:
    return pb.Hello(protocol=range_to_pb(), role="peer", name="honest", concurrent_rollouts=1)


@contextlib.contextmanager
def _hostile(folder: Path, http: int, control: int, invite: str) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.adversary.hostile_sockets"]
    flood = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert flood.stdin is not None
        assert flood.stdout is not None
        given = {"folder": str(folder), "http": http, "control": control, "invite": invite}
        flood.stdin.write(json.dumps(given).encode() + b"\n")
        flood.stdin.flush()
        flood.stdout.readline()
        yield
    finally:
        flood.kill()
        flood.wait()


async def _window(coordinator: CoordinatorProcess, members: list[Enrolment], http_url: str, seconds: float) -> Window:
    window, process = Window(), psutil.Process(coordinator.pid)
    ends_s = time.monotonic() + seconds

    async def watch_memory() -> None:
        while time.monotonic() < ends_s:
            window.rss_bytes.append(process.memory_info().rss)
            await asyncio.sleep(0.05)

    await asyncio.gather(watch_memory(), *(_honest(member, http_url, window, ends_s) for member in members))
    return window


async def _honest(member: Enrolment, http_url: str, window: Window, ends_s: float) -> None:
    """Upload and ask in turn, with a session open; what is uploaded is of no lease, and is answered as fenced."""
    rollout = pb.Rollout(lease_id=1, fencing_token=1, group_id=1)
    async with kept_session(member, _hello()) as stub, aiohttp.ClientSession() as client:
        while time.monotonic() < ends_s:
            async with _timed(window):
                async for _ in stub.UploadRollouts(iter([pb.RolloutUpload(rollouts=[rollout])]), timeout=_ANSWER_S):
                    pass
            async with _timed(window), client.get(f"{http_url}/health") as response:
                await response.read()
            await asyncio.sleep(_EVERY_S)


@contextlib.asynccontextmanager
async def _timed(window: Window) -> AsyncIterator[None]:
    began_s = time.monotonic()
    try:
        yield
    except Exception:
        window.failed += 1
    else:
        window.answered_s.append(time.monotonic() - began_s)


@contextlib.asynccontextmanager
async def kept_session(member: Enrolment, hello: pb.Hello) -> AsyncIterator[Any]:
    """Open a member's session, keep it with heartbeats, and yield the stub of its channel."""
    channel = open_channel(member.grpc_address, member.credentials)
    stub: Any = rollcast_pb2_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]
    session = stub.Session()
    await session.write(pb.PeerMessage(hello=hello))
    await session.read()

    async def beat() -> None:
        for sequence in range(1, 1 << 30):
            await session.write(pb.PeerMessage(heartbeat=pb.Heartbeat(sequence=sequence, state="idle")))
            await asyncio.sleep(1.0)

    beating = asyncio.create_task(beat())
    try:
        yield stub
    finally:
        beating.cancel()
        session.cancel()
        await channel.close(None)
