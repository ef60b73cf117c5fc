"""Have members advertise addresses of third parties, and count what a real peer sends there.

One coordinator and one peer, real processes, and members that lie about where they listen: as a mirror on the peer's
own loopback, as another address of this machine, as a libp2p address. One honest member shows that the peer dials.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import tomli_w

from bench.adversary.flood import kept_session
from bench.fleet.process import CoordinatorProcess, RunShape, wait_until_listening
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.identity import Identity
from rollcast.wire.joining.enrol import enrol
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb

LIES = ("http://127.0.0.1:{port}/x", "127.0.0.2:{port}", "/ip4/127.0.0.2/tcp/{port} 127.0.0.2:{port}")
_START_S, _JOIN_S, _DIALLED_S = 300.0, 60.0, 120.0


def requests() -> float:
    """Return the number of connections to third parties, once the peer has dialled the honest member."""
    with tempfile.TemporaryDirectory() as folder:
        coordinator = CoordinatorProcess(Path(folder), Identity.generate(), RunShape(dial_back=False))
        coordinator.start()
        try:
            wait_until_listening(coordinator, _START_S)
            return asyncio.run(_count(coordinator, Path(folder)))
        finally:
            coordinator.kill()


class Listener:
    """A service that counts the connections to it."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.reached = asyncio.Event()

    def connected(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.reached.set()
        writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    """Listen at every address of this machine, 127.0.0.1 and 127.0.0.2 among them."""
    made = Listener()
    server = await asyncio.start_server(made.connected, "0.0.0.0", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


async def _count(coordinator: CoordinatorProcess, folder: Path) -> float:
    own = Identity.load_or_create(folder / "victim" / "identity.key")
    async with listening() as third_party, listening() as honest, AsyncExitStack() as sessions:
        await sessions.enter_async_context(_member(coordinator, "origin", Identity.generate(), folder, ""))
        advertised = [lie.format(port=third_party.port) for lie in LIES] + [f"127.0.0.1:{honest.port}"]
        for address in advertised:
            await sessions.enter_async_context(_member(coordinator, "peer", identity_below(own), folder, address))
        victim = _start_victim(coordinator, folder)
        try:
            async with deadline(_DIALLED_S, "the peer to dial the honest member"):
                await honest.reached.wait()
        finally:
            victim.kill()
            victim.wait()
        return float(third_party.connections)


def identity_below(other: Identity) -> Identity:
    """Return an identity with a smaller peer id: of two that relay to each other, the other one dials."""
    while (made := Identity.generate()).peer_id >= other.peer_id:
        pass
    return made


def _start_victim(coordinator: CoordinatorProcess, folder: Path) -> subprocess.Popen[bytes]:
    config = folder / "victim.toml"
    values: dict[str, Any] = {"role": "peer", "name": "victim", "invite": coordinator.invite("peer").encode()}
    values |= {"state_folder": str(folder / "victim"), "limits": {"polite": False}}
    config.write_text(tomli_w.dumps(values))
    with (folder / "victim.log").open("wb") as log:
        command = [sys.executable, "-m", "rollcast.cli.main", "peer", "run", str(config), "--with-parent"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


@asynccontextmanager
async def _member(
    coordinator: CoordinatorProcess, role: str, identity: Identity, folder: Path, advertise: str
) -> AsyncIterator[None]:
    """Keep a session open that advertises this address."""
    place = folder / str(identity.peer_id)
    joined = await enrol(coordinator.invite(role), identity, place, _JOIN_S)
    hello = pb.Hello(protocol=range_to_pb(), role=role, name=role, concurrent_rollouts=8, advertise=advertise)
    async with kept_session(joined, hello):
        yield
