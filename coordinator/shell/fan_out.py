"""Messages that go to very many peers for one reason: a few at a time, so that everything else goes on between them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

AT_ONCE = 10  # messages
PAUSE_S = 0.01  # 1,000 a second: each has an answer, and both together take some hundred microseconds


class FanOut:
    """Sends in the order of the calls. Few messages leave at once, many wait for their turn."""

    def __init__(self, send: Callable[[PeerId, pb.CoordinatorMessage], None]) -> None:
        self._send = send
        self._waiting: deque[tuple[PeerId, pb.CoordinatorMessage]] = deque()
        self._left = AT_ONCE  # until the timer
        self._timer: asyncio.TimerHandle | None = None

    def send(self, peer_id: PeerId, message: pb.CoordinatorMessage) -> None:
        """Now, or after those that wait."""
        self._waiting.append((peer_id, message))
        self._go_on()

    def close(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        while self._waiting and self._left:
            self._left -= 1
            self._send(*self._waiting.popleft())
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._next_turn)

    def _next_turn(self) -> None:
        self._timer, self._left = None, AT_ONCE
        if self._waiting:
            self._go_on()
