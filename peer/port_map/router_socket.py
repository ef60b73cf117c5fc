"""Send requests to a router over UDP, each again until it is answered, as NAT-PMP and PCP do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from rollcast.runtime.errors import MalformedMessage, Unreachable

PORT = 5351
"""UDP port at which a router listens for NAT-PMP (RFC 6886, section 3) and PCP (RFC 6887, section 19.1)."""
FIRST_WAIT_S = 0.25
TRIES = 5
"""Waits double from the first one. The RFCs retry for a minute and more; a router on the local network that answers at
all does so at once."""

AnswerT = TypeVar("AnswerT")


class RouterSocket(asyncio.DatagramProtocol, Generic[AnswerT]):
    """A UDP socket connected to a router, which receives no other machine's packets. An asynchronous context manager.

    Args:
        router: its IP address, a link-local one of IPv6 with its interface (fe80::1%eth0).
        protocol: the protocol's name, for errors.
        parse: parses an answer; raises MalformedMessage for other packets, which are ignored.
        answer_bytes_max: longer packets are ignored.
        own: this machine's address to send from; empty: the system's choice.
    """

    def __init__(
        self,
        router: str,
        port: int,
        *,
        protocol: str,
        parse: Callable[[bytes], AnswerT],
        answer_bytes_max: int,
        own: str = "",
    ) -> None:
        self.router = router
        self._port, self._own = port, own
        self._protocol = protocol
        self._parse, self._answer_bytes_max = parse, answer_bytes_max
        self._transport: asyncio.DatagramTransport | None = None
        self._expected: Callable[[AnswerT], bool] = lambda answer: False
        self._answer: asyncio.Future[AnswerT] | None = None

    async def __aenter__(self) -> RouterSocket[AnswerT]:
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: self,
                remote_addr=(self.router, self._port),
                local_addr=(self._own, 0) if self._own else None,
            )
        except OSError as error:
            raise Unreachable(f"no packet can be sent to the router {self.router}", cause=str(error)) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._transport is not None
        self._transport.close()

    async def ask(self, request: bytes, expected: Callable[[AnswerT], bool]) -> AnswerT:
        """Send a request until the answer to it comes; one at a time.

        Args:
            expected: whether an answer is that to this request.

        Raises:
            Unreachable: the router does not answer, or no program listens at the port.
        """
        assert self._transport is not None
        self._expected, self._answer = expected, asyncio.get_running_loop().create_future()
        wait_s = FIRST_WAIT_S
        for _ in range(TRIES):
            self._transport.sendto(request)
            done, _ = await asyncio.wait((self._answer,), timeout=wait_s)
            if done:
                return self._answer.result()
            wait_s *= 2.0
        raise Unreachable(f"the router {self.router} does not answer over {self._protocol}")

    # ------------------------------------------------------------ DatagramProtocol

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Take the answer to the request in flight; other packets are ignored."""
        if self._answer is None or self._answer.done() or len(data) > self._answer_bytes_max:
            return
        try:
            answer = self._parse(data)
        except MalformedMessage:
            return
        if self._expected(answer):
            self._answer.set_result(answer)

    def error_received(self, exc: Exception) -> None:
        """Fail at once: the router reports that no program listens at the port."""
        if self._answer is not None and not self._answer.done():
            what = f"the router {self.router} has no {self._protocol}"
            self._answer.set_exception(Unreachable(what, cause=str(exc)))
