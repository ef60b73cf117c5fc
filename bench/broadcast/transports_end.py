"""Run one end of a chunk link for bench.broadcast.transports: receive or send chunks and report what they cost.

usage: python -m bench.broadcast.transports_end listen|dial FOLDER raw|direct|p2p MIB HOST [ADDRESS]

``FOLDER`` holds a folder for each end, with its identity and certificate. Both ends print lines of JSON; the listening
end prints its address first.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from peer.config import LinkConfig
from peer.links.direct import DirectTransport
from peer.links.transport import ChunkTransport, Link, LinkReceiver
from peer.p2p.transport import P2pTransport
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import StripeId
from rollcast.wire.links.frames import ChunkFrame, LinkFrame
from rollcast.wire.proto import rollcast_pb2 as pb

CHUNK_BYTES = 64 << 10
_PAYLOAD = bytes(range(256)) * (CHUNK_BYTES // 256)
_WAIT_S = 120.0
_DONE = pb.LinkMessage(want=pb.Want(version=1))


class SecondHalf:
    """Time the second half of ``size_bytes``: the connection's slow start is over by then."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._came_bytes = 0
        self._from = self._until = (0, 0.0)

    def came(self, size_bytes: int) -> bool:
        """Count ``size_bytes`` more bytes, and return whether all have arrived."""
        self._came_bytes += size_bytes
        self._until = (self._came_bytes, time.monotonic())
        if not self._from[0] and 2 * self._came_bytes >= self._size_bytes:
            self._from = self._until
        return self._came_bytes >= self._size_bytes

    @property
    def bytes_per_second(self) -> float:
        """Return the rate of the bytes after the first half; 0 where all of them arrived at once."""
        seconds = self._until[1] - self._from[1]
        return (self._until[0] - self._from[0]) / seconds if seconds else 0.0


class Taker:
    """The receiver of ``count`` chunks, which confirms to the other end that it has all of them."""

    def __init__(self, link: Link, count: int) -> None:
        self._link = link
        self.steady = SecondHalf(count * CHUNK_BYTES)
        self.done = asyncio.Event()

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        if self.steady.came(sum(len(frame.payload) for frame in frames if isinstance(frame, ChunkFrame))):
            self._link.send(_DONE)

    def drained(self) -> None:
        pass

    def closed(self, reason: str, code: str) -> None:
        self.done.set()


class Sender:
    """The sender of ``count`` chunks, each after the one before has left, which then waits for the confirmation."""

    def __init__(self, link: Link, count: int) -> None:
        self._link = link
        self._left = count
        self.done = asyncio.Event()

    def begin(self) -> None:
        self.drained()

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        self.done.set()

    def drained(self) -> None:
        if self._left:
            self._left -= 1
            self._link.send_chunk(1, 0, self._left, _PAYLOAD, StripeId(1))

    def closed(self, reason: str, code: str) -> None:
        self.done.set()


def _transport(folder: Path, kind: str, host: str) -> ChunkTransport:
    credentials, identity = TlsCredentials.load(folder), Identity.load(folder / "identity.pem")
    run_id = credentials.caller.run_id
    if kind == "p2p":
        return P2pTransport(identity, credentials, run_id, lambda _caller: "", host=host)
    return DirectTransport(LinkConfig(host=host), credentials, run_id, lambda _caller: "")


def _report(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


async def _listen(folder: Path, kind: str, count: int, host: str) -> None:
    takers: asyncio.Queue[Taker] = asyncio.Queue()

    def accept(link: Link) -> LinkReceiver:
        taker = Taker(link, count)
        takers.put_nowait(taker)
        return taker

    transport = _transport(folder / "listen", kind, host)
    _report(address=await transport.start(accept))
    taker = await takers.get()
    began_cpu_s = time.process_time()
    await taker.done.wait()
    _report(cpu_s=time.process_time() - began_cpu_s, steady_bytes_per_second=taker.steady.bytes_per_second)
    await transport.close()


async def _dial(folder: Path, kind: str, count: int, host: str, address: str) -> None:
    peer_id = Identity.load(folder / "listen" / "identity.pem").peer_id
    transport = _transport(folder / "dial", kind, host)
    link = await transport.dial(peer_id, address)
    sender = Sender(link, count)
    link.start(sender)
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    sender.begin()
    await sender.done.wait()
    _report(seconds=time.monotonic() - began_s, cpu_s=time.process_time() - began_cpu_s, rtt_s=link.measure().rtt_s)
    await transport.close()


async def _listen_raw(count: int, host: str) -> None:
    done = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began_cpu_s, steady = time.process_time(), SecondHalf(count * CHUNK_BYTES)
        while not steady.came(len(await reader.read(256 << 10))):
            pass
        writer.write(b"!")
        await writer.drain()
        _report(cpu_s=time.process_time() - began_cpu_s, steady_bytes_per_second=steady.bytes_per_second)
        writer.close()
        done.set()

    server = await asyncio.start_server(take, host, 0, limit=1 << 20)
    _report(address=f"{host}:{server.sockets[0].getsockname()[1]}")
    await done.wait()


async def _dial_raw(count: int, address: str) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    for _ in range(count):
        writer.write(_PAYLOAD)
        await writer.drain()
    await reader.readexactly(1)
    _report(seconds=time.monotonic() - began_s, cpu_s=time.process_time() - began_cpu_s, rtt_s=0.0)
    writer.close()


async def _main(what: str, folder: Path, kind: str, mib: int, host: str, address: str = "") -> None:
    count = (mib << 20) // CHUNK_BYTES
    async with asyncio.timeout(_WAIT_S):
        match what, kind:
            case "listen", "raw":
                await _listen_raw(count, host)
            case "dial", "raw":
                await _dial_raw(count, address)
            case "listen", _:
                await _listen(folder, kind, count, host)
            case _:
                await _dial(folder, kind, count, host, address)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:]))
