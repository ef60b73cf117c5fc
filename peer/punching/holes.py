"""Punch holes: both ends dial and listen on one port, and the first connection that proves itself becomes the link.

Which end takes the server's part in TLS is agreed before, because a connection that both dialled has no server. The
client tries one connection after the other, so both ends choose the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

from peer.links.acceptor import LinkAcceptor
from peer.links.transport import Admission
from peer.punching.core import Order
from peer.punching.port import Address, PunchPort, address_in
from rollcast.runtime.errors import ProtocolMismatch, RollcastError, Unreachable, WrongKey
from rollcast.runtime.waits import result_or_released
from rollcast.wire.identity.tls import Caller, TlsCredentials
from rollcast.wire.ids import RunId
from rollcast.wire.joining.preconnected import ConnectedSockets
from rollcast.wire.links.dialler import LinkDialler
from rollcast.wire.links.handshake import LinkLimits
from rollcast.wire.links.stream import LinkStream
from rollcast.wire.links.tcp import SocketOptions

CONNECTIONS_MOST = 4
"""Connections tried in one attempt; an honest other end needs one."""
_DIAL_PAUSE_S = 0.2

Opened = tuple[LinkStream, Caller]


class Holes:
    """All attempts of a process to punch holes. Make it inside a running event loop.

    Args:
        open_port: opens the port of all attempts over IPv4 (4) or IPv6 (6); called once for each, when it is first
            needed.
    """

    def __init__(
        self,
        credentials: TlsCredentials,
        run_id: RunId,
        admit: Admission,
        *,
        limits: LinkLimits,
        options: SocketOptions,
        open_port: Callable[[int], PunchPort],
    ) -> None:
        self._admit = admit
        self._open_port = open_port
        self._ports: dict[int, PunchPort] = {}
        self._connector = ConnectedSockets()
        self._dialler = LinkDialler(credentials, run_id, limits, options, self._connector)
        self._acceptor = LinkAcceptor(credentials, run_id, limits=limits, options=options)
        self._attempts: list[_Attempt] = []
        self._closed = False

    def port(self, version: int) -> PunchPort:
        """Return the port of all attempts over this version of IP, which the first call opens.

        Raises:
            OSError: no port can be opened, or the holes are closed.
        """
        if self._closed:  # whoever still wants to keep the port mapped would open one that nothing closes
            raise OSError("the port for holes is closed")
        if version not in self._ports:
            self._ports[version] = self._open_port(version)
        return self._ports[version]

    async def punch(self, order: Order) -> Opened:
        """Return a link to the peer of this order, greeted and not started.

        Raises:
            RollcastError: what went wrong last, or Unreachable: no connection came about in time.
        """
        attempt = _Attempt(order, self._admit)
        self._attempts.append(attempt)
        tasks: list[asyncio.Task[None]] = []
        try:
            for version, remote in attempt.remotes.items():
                port = self.port(version)
                port.listen(self._came)
                tasks.append(asyncio.create_task(attempt.dial(port, remote)))
            work = self._serve(attempt) if order.serves else self._call(attempt)
            tasks.append(asyncio.create_task(work))
            async with asyncio.timeout(order.deadline_s):
                return await result_or_released(attempt.opened, _end_unwanted)
        except TimeoutError:
            raise attempt.problem() from None
        except OSError as error:
            raise Unreachable("no port for hole punching can be opened", cause=str(error)) from None
        finally:
            self._attempts.remove(attempt)
            for port in self._ports.values() if not self._attempts else ():
                port.deafen()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            attempt.end()

    def renew(self, credentials: TlsCredentials) -> None:
        """Show this certificate from now on."""
        self._dialler.renew(credentials)
        self._acceptor.renew(credentials)

    async def close(self) -> None:
        """End every link, and close the ports for good."""
        self._closed = True
        for port in self._ports.values():
            port.close()
        await asyncio.gather(self._dialler.close(), self._acceptor.close())

    def _came(self, sock: socket.socket, remote: Address) -> None:
        """Give a connection to the attempt with its remote host; the port may differ, because routers choose it."""
        matching = [one for one in self._attempts if one.matches(remote)]
        if not matching:
            sock.close()
            return
        max(matching, key=lambda one: remote in one.remotes.values()).add(sock)

    async def _call(self, attempt: _Attempt) -> None:
        """Take the client's part: try one connection after the other."""
        for _ in range(CONNECTIONS_MOST):
            sock = await attempt.connections.get()
            try:
                address = self._connector.add(sock)
            except OSError as error:
                sock.close()
                attempt.failed(Unreachable("the other end closed the connection", cause=str(error)))
                continue
            try:
                found = await self._dialler.dial(attempt.order.peer_id, address, admit=self._admit)
            except RollcastError as error:
                attempt.failed(error)
            else:
                attempt.take(*found)
                return
            finally:
                self._connector.drop(address)
        attempt.give_up()

    async def _serve(self, attempt: _Attempt) -> None:
        """Take the server's part; the other end chooses the connection, so none waits for another."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS_MOST):
                sock = await attempt.connections.get()
                group.create_task(self._adopt(sock, attempt))

    async def _adopt(self, sock: socket.socket, attempt: _Attempt) -> None:
        try:
            await self._acceptor.adopt(sock, _Arrival(self._attempts, attempt))
        except OSError as error:
            attempt.failed(Unreachable("the other end ended the handshake", cause=str(error)))


class _Attempt:
    """One attempt to punch a hole."""

    def __init__(self, order: Order, admit: Admission) -> None:
        self.order = order
        #: Where the other end is, by version of IP. None: unknown, so that this end only listens.
        self.remotes: dict[int, Address | None] = {4: address_in(order.address)}
        if order.address_ipv6:
            self.remotes[6] = address_in(order.address_ipv6)
        self.connections: asyncio.Queue[socket.socket] = asyncio.Queue(CONNECTIONS_MOST)
        self.opened: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        self._admit = admit
        self._last: RollcastError | None = None
        self._failures = 0

    async def dial(self, port: PunchPort, remote: Address | None) -> None:
        """Dial until cancelled; while a connection is open, dialling fails at once."""
        while remote is not None and remote[1]:
            with contextlib.suppress(OSError):
                self.add(await port.dialled(remote))
            await asyncio.sleep(_DIAL_PAUSE_S)

    def matches(self, remote: Address) -> bool:
        """Return whether a connection from this address may belong to this attempt."""
        version = 6 if ":" in remote[0] else 4
        expected = self.remotes.get(version)
        return version in self.remotes and (expected is None or expected[0] == remote[0])

    def add(self, sock: socket.socket) -> None:
        """Queue a connection that came about; close it if too many wait."""
        try:
            self.connections.put_nowait(sock)
        except asyncio.QueueFull:
            sock.close()

    def take(self, stream: LinkStream, caller: Caller) -> None:
        """Deliver a greeted link if it is the first and its caller still waits; otherwise end it."""
        if self.opened.done():
            stream.end("another connection was first")
        else:
            self.opened.set_result((stream, caller))

    def failed(self, error: RollcastError) -> None:
        """Note a failed connection; another can only help if this one may have been a stranger's, or was cut."""
        self._last = error
        self._failures += 1
        if self._failures >= CONNECTIONS_MOST or isinstance(error, ProtocolMismatch):
            self.give_up()

    def give_up(self) -> None:
        """End the attempt, because no more connections are tried."""
        if not self.opened.done():
            self.opened.set_exception(self.problem())

    def problem(self) -> RollcastError:
        """Return why there is no link."""
        why = f"both dialled for {self.order.deadline_s:g} s and no connection came about"
        return self._last or Unreachable(f"cannot punch a hole to {self.order.peer_id}: {why}")

    def end(self) -> None:
        """Close the connections that were not tried."""
        while not self.connections.empty():
            self.connections.get_nowait().close()
        if self.opened.done() and not self.opened.cancelled():
            self.opened.exception()  # asyncio would log an exception that is never retrieved
        else:
            self.opened.cancel()

    def admit(self, caller: Caller) -> str:
        """See LinkTaker."""
        if caller.peer_id != self.order.peer_id:
            what = f"this port expects no hole to {caller.peer_id}"
            self.failed(WrongKey(f"another peer than {self.order.peer_id} came through the hole", cause=what))
            return what
        problem = self._admit(caller)
        if problem:
            self.failed(Unreachable(f"{caller.peer_id} may have no chunk link", cause=problem))
        return problem


def _end_unwanted(opened: Opened) -> None:
    opened[0].end("no caller waits for this link any more")


class _Arrival:
    """The LinkTaker of one connection; which attempt it belongs to is known once the caller is.

    Args:
        attempts: the attempts under way.
        attempt: the one that the connection's remote address suggests.
    """

    def __init__(self, attempts: Sequence[_Attempt], attempt: _Attempt) -> None:
        self._attempts, self._attempt = attempts, attempt

    def admit(self, caller: Caller) -> str:
        fitting = [one for one in self._attempts if one.order.peer_id == caller.peer_id and one.order.serves]
        self._attempt = fitting[0] if fitting else self._attempt
        return self._attempt.admit(caller)

    def greeted(self, stream: LinkStream, caller: Caller) -> None:
        self._attempt.take(stream, caller)

    def refused(self, caller: Caller, error: RollcastError) -> None:
        self._attempt.failed(error)
