"""Simulate calls between processes, with deadlines, and with failures as clients see them.

A server may have carried out a call that fails at the client, so clients repeat calls and servers must tolerate that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollcast.sim.kernel.network import Network, Stream
from rollcast.sim.kernel.process import Process, Wait


class Failed:
    """The outcome of a call that brought no reply."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Reply:
    """The server's end of a call; it is answered at most once."""

    __slots__ = ("_answer", "open")

    def __init__(self, answer: Callable[[Any], None]) -> None:
        self._answer = answer
        self.open = True

    def send(self, outcome: Any) -> None:
        """Answer the call; a second answer, or one to a client that ended, is discarded."""
        if self.open:
            self.open = False
            self._answer(outcome)


class Server(Process):
    """A process that answers calls. When it dies, its open calls fail at their clients."""

    def __init__(self, name: str, network: Network) -> None:
        super().__init__(name, network.agenda)
        self.network = network
        self._open_calls: dict[Reply, None] = {}

    def opened(self, reply: Reply) -> None:
        """Note that a call arrived and is open."""
        self._open_calls[reply] = None

    def closed(self, reply: Reply) -> None:
        """Note that a call was answered or abandoned."""
        self._open_calls.pop(reply, None)

    def _killed(self) -> None:
        calls, self._open_calls = self._open_calls, {}
        for reply in calls:
            reply.send(Failed("connection reset"))


Handler = Callable[[Any, Reply], None]


class Call:
    """One call, from the client's side.

    Args:
        handler: the server's handler, called with the request and its reply.
        times: how often the transport delivers the request; more than 1 simulates a repeated delivery.
    """

    __slots__ = ("_client", "_handler", "_life", "_network", "_on_outcome", "_request", "_server", "_times", "_up")

    def __init__(
        self, network: Network, client: Process, server: Server, handler: Handler, request: Any, times: int = 1
    ) -> None:
        self._network = network
        self._client = client
        self._life = client.life
        self._server = server
        self._handler = handler
        self._request = request
        self._times = times
        self._on_outcome: Callable[[Any], None] | None = None
        self._up = Stream(network, client.name, server.name, self._arrived)

    def begin(self, on_outcome: Callable[[Any], None], timeout_s: float, size_bytes: float = 0.0) -> None:
        """Send the request; ``on_outcome`` is called with the reply, or with Failed after ``timeout_s``."""
        self._on_outcome = on_outcome
        self._up.send(self._request, size_bytes)
        self._network.agenda.after(timeout_s, self._ended, Failed(f"no answer for {timeout_s:g} s"))

    def _ended(self, outcome: Any) -> None:
        on_outcome, self._on_outcome = self._on_outcome, None
        if on_outcome is not None:
            self._up.close()
            self._client.call_in_life(self._life, on_outcome, outcome)

    def _arrived(self, request: Any) -> None:
        server = self._server
        if not server.running:
            self._answer(Failed("connection refused"))
        for _ in range(self._times if server.running else 0):
            reply = Reply(self._answer)
            server.opened(reply)
            server.call_in_life(server.life, self._handler, request, reply)

    def _answer(self, outcome: Any) -> None:
        if self._on_outcome is not None:
            Stream(self._network, self._server.name, self._client.name, self._ended).send(outcome)


def call(
    network: Network,
    client: Process,
    server: Server,
    handler: Handler,
    request: Any,
    *,
    timeout_s: float,
    size_bytes: float = 0.0,
) -> Wait:
    """Return a wait for a server's reply to a call, or for Failed."""
    return lambda on_outcome: Call(network, client, server, handler, request).begin(on_outcome, timeout_s, size_bytes)
