"""Run one end of a hole punched through two routers: learn its outside address, then dial while the other end dials.

usage: hole_puncher.py INSIDE_ADDRESS OBSERVER_ADDRESS
       hole_puncher.py --observe ADDRESS

The second form is the observer: it answers every connection and datagram to port 9 with the address and port that it
came from.

The first form is an end, which obeys lines of JSON on stdin. {"try", "do": "observe", "protocol"}: it prints "observed
TRY ADDRESS PORT" with what the observer sees of a fresh port. {"try", "do": "punch", "address", "port", "nonce",
"deadline_s"}: it prints "through TRY SECONDS" once both ends have each other's nonce, or "failed TRY". TCP dials and
listens on one port
(SO_REUSEPORT; simultaneous open, RFC 9293 section 3.5; Ford, Srisuresh, Kegel 2005, "Peer-to-Peer Communication Across
Network Address Translators", section 4); UDP sends a datagram every 50 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

OBSERVER_PORT = 9
_OBSERVE_DEADLINE_S = 10.0
_DIAL_PAUSE_S = 0.2
_SEND_EVERY_S = 0.05
_LINE_MAX = 64

Address = tuple[str, int]


class TcpEnd:
    """A local port from which we dial and on which we listen."""

    def __init__(self, inside: str) -> None:
        self._inside, self._port = inside, 0
        self._observing: socket.socket | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._nonce = b""

    async def observed(self, observer: Address) -> str:
        """Return "ADDRESS PORT" as the observer sees this port; the open connection keeps the router's mapping."""
        self._observing = self._bound()
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._observing, observer)
        return (await loop.sock_recv(self._observing, _LINE_MAX)).decode().strip()

    async def punch(self, remote: Address, nonce: bytes, deadline_s: float) -> None:
        """Return once the other end has sent its nonce and acknowledged ours.

        Raises:
            TimeoutError: that did not happen before the deadline.
        """
        self._nonce = nonce
        listening = self._bound()
        listening.listen()
        server = await asyncio.start_server(self._greet, sock=listening)
        dialling = asyncio.create_task(self._dial(remote))
        try:
            async with asyncio.timeout(deadline_s):
                await self._done
        finally:
            dialling.cancel()
            server.close()
            if self._observing is not None:
                self._observing.close()

    async def _dial(self, remote: Address) -> None:
        while True:
            dialling = self._bound()
            try:
                await asyncio.get_running_loop().sock_connect(dialling, remote)
                await self._greet(*await asyncio.open_connection(sock=dialling))
            except OSError:
                await asyncio.sleep(_DIAL_PAUSE_S)
            finally:
                dialling.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            for sent in (self._nonce, b"k"):  # "k" acknowledges the other end's nonce
                writer.write(sent)
                received = await reader.readexactly(len(sent))
                if received != sent:
                    return
            if not self._done.done():
                self._done.set_result(None)
        writer.close()

    def _bound(self) -> socket.socket:
        one = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind((self._inside, self._port))
        self._port = int(one.getsockname()[1])
        return one


class UdpEnd:
    """A local port from which we send."""

    def __init__(self, inside: str) -> None:
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((inside, 0))

    async def observed(self, observer: Address) -> str:
        """Return "ADDRESS PORT" as the observer sees this port; see TcpEnd."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.sock_sendto(self._socket, b"?", observer)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    return (await loop.sock_recv(self._socket, _LINE_MAX)).decode().strip()

    async def punch(self, remote: Address, nonce: bytes, deadline_s: float) -> None:
        """Return once both ends have each other's nonce, and answer each nonce where it came from; see TcpEnd."""
        sending = asyncio.create_task(self._send(remote, nonce))
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    data, sender = await asyncio.get_running_loop().sock_recvfrom(self._socket, _LINE_MAX)
                    if data[: len(nonce)] != nonce:
                        continue
                    await asyncio.get_running_loop().sock_sendto(self._socket, nonce + b"k", sender)
                    if data.endswith(b"k"):
                        return
        finally:
            sending.cancel()
            self._socket.close()

    async def _send(self, remote: Address, nonce: bytes) -> None:
        while True:
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_sendto(self._socket, nonce, remote)
            await asyncio.sleep(_SEND_EVERY_S)


class Puncher:
    """The end of a hole that carries out orders, several tries at once."""

    def __init__(self, inside: str, observer: Address) -> None:
        self._inside, self._observer = inside, observer
        self._ends: dict[int, TcpEnd | UdpEnd] = {}

    async def obey(self, order: dict[str, Any]) -> None:
        number = int(order["try"])
        if order["do"] == "observe":
            end = TcpEnd(self._inside) if order["protocol"] == "tcp" else UdpEnd(self._inside)
            self._ends[number] = end
            async with asyncio.timeout(_OBSERVE_DEADLINE_S):
                print("observed", number, await end.observed(self._observer), flush=True)
            return
        started_s = time.monotonic()
        remote = (str(order["address"]), int(order["port"]))
        try:
            await self._ends.pop(number).punch(remote, bytes.fromhex(order["nonce"]), float(order["deadline_s"]))
        except TimeoutError:
            print("failed", number, flush=True)
        else:
            print("through", number, time.monotonic() - started_s, flush=True)


async def orders(obey: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Pass each line of stdin, decoded from JSON, to ``obey`` in a task of its own, until stdin is closed."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(obey(json.loads(line)))  # type: ignore[arg-type]


class _ObservingUdp(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self._transport.sendto(f"{addr[0]} {addr[1]}\n".encode(), addr)


async def observe(address: str) -> None:
    """Answer every connection and datagram with the address it came from, until stdin is closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("peername")
        writer.write(f"{host} {port}\n".encode())
        with contextlib.suppress(OSError):
            await reader.read()  # returns when the other end closes
        writer.close()

    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(_ObservingUdp, (address, OBSERVER_PORT))
    async with await asyncio.start_server(answer, address, OBSERVER_PORT):
        print("ready", flush=True)
        await orders(lambda order: asyncio.sleep(0))


def main(arguments: list[str]) -> None:
    if arguments[0] == "--observe":
        asyncio.run(observe(arguments[1]))
        return
    puncher = Puncher(arguments[0], (arguments[1], OBSERVER_PORT))

    async def work() -> None:
        print("ready", flush=True)
        await orders(puncher.obey)

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1:])
