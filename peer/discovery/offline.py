"""Going on without the coordinator: tells the relay when it is on its own, and when no longer."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

PATIENCE_S = 5.0
"""Without a session for this long; a restart of the coordinator is mostly over by then."""


class RelayHost(Protocol):
    """Who follows the coordinator's plan."""

    def coordinator_gone(self, gone: bool) -> None:
        """Go on without it, or follow it again."""


class OfflineWatch:
    """A connectivity component (peer.connect.connectivity). Without any session since the start, too. Make it in a
    running loop."""

    kinds: frozenset[str] = frozenset()

    def __init__(self, relay: RelayHost, patience_s: float = PATIENCE_S) -> None:
        self._relay = relay
        self._patience_s = patience_s
        self._connected = asyncio.Event()
        self._changed = asyncio.Event()
        self.alone = False
        """Whether the relay goes on without the coordinator."""

    async def run(self) -> None:
        """Watch, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._connected.wait()
            except TimeoutError:
                log.warning("the coordinator is away: versions go on from peer to peer")
                self._set(True)
                await self._connected.wait()
                log.info("the coordinator is back")
            self._set(False)
            self._changed.clear()
            if self._connected.is_set():
                await self._changed.wait()

    def opened(self, welcome: pb.Welcome) -> None:
        """See ConnectivityComponent."""
        self._connected.set()

    def lost(self) -> None:
        """See ConnectivityComponent."""
        self._connected.clear()
        self._changed.set()

    def received(self, message: pb.CoordinatorMessage) -> None:
        """See ConnectivityComponent; nothing is for it."""

    def _set(self, alone: bool) -> None:
        if alone != self.alone:
            self.alone = alone
            self._relay.coordinator_gone(alone)
