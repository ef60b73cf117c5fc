"""Switch the relay to offline mode while the coordinator is unreachable, and back."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

OFFLINE_AFTER_S = 5.0
"""Seconds without a session before the relay works offline; a restart of the coordinator usually takes less."""


class RelayHost(Protocol):
    """The relay, which otherwise follows the coordinator's relay plan."""

    def set_offline(self, offline: bool) -> None:
        """Pass versions on without a relay plan (True), or follow the plan again (False)."""


class OfflineWatch:
    """Watch the session for the relay, a connectivity component (peer.connect.connectivity).

    A coordinator that was never reached since startup counts as unreachable too. Create it inside a running event loop.
    """

    kinds: frozenset[str] = frozenset()

    def __init__(self, relay: RelayHost, offline_after_s: float = OFFLINE_AFTER_S) -> None:
        self._relay = relay
        self._offline_after_s = offline_after_s
        self._connected = asyncio.Event()
        self._changed = asyncio.Event()
        self.offline = False
        """Whether the relay works without the coordinator."""

    async def run(self) -> None:
        """Watch the session until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._offline_after_s):
                    await self._connected.wait()
            except TimeoutError:
                log.warning("coordinator unreachable: versions spread from peer to peer")
                self._set(True)
                await self._connected.wait()
                log.info("coordinator reachable again")
            self._set(False)
            self._changed.clear()
            if self._connected.is_set():
                await self._changed.wait()

    def opened(self, welcome: pb.Welcome) -> None:
        """Follow the coordinator again."""
        self._connected.set()

    def lost(self) -> None:
        """Start the offline timeout."""
        self._connected.clear()
        self._changed.set()

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Ignore: it handles no message."""

    def _set(self, offline: bool) -> None:
        if offline != self.offline:
            self.offline = offline
            self._relay.set_offline(offline)
