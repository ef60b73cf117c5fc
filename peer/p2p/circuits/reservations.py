"""Keep reservations at relays for a peer that cannot be dialled (trio)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from peer.links.addresses import P2pAddress


class Reserve(Protocol):
    """See CircuitClient.reserve."""

    def __call__(self, relay: P2pAddress, held: Callable[[], None]) -> Awaitable[None]:
        """Hold a reservation until it ends."""


class Reservations:
    """Keep reservations at up to MOST of the named relays, preferring those named first.

    Args:
        reserve: see CircuitClient.reserve.
        changed: called with the relays at which a reservation is held, in the order named, whenever they change.
        jitter: returns a random number between 0 and 1.
    """

    MOST = 2
    _PAUSE_FIRST_S, _PAUSE_MOST_S = 1.0, 300.0

    def __init__(
        self,
        reserve: Reserve,
        changed: Callable[[tuple[P2pAddress, ...]], None],
        nursery: trio.Nursery,
        jitter: Callable[[], float],
    ) -> None:
        self._reserve = reserve
        self._changed = changed
        self._nursery = nursery
        self._jitter = jitter
        self._named: tuple[P2pAddress, ...] = ()
        self._tried: dict[P2pAddress, trio.CancelScope] = {}
        self._held: set[P2pAddress] = set()
        self._failures: dict[P2pAddress, int] = {}
        self._resting: set[P2pAddress] = set()

    def want(self, relays: tuple[P2pAddress, ...]) -> None:
        """Replace the named relays; reservations at others end."""
        self._named = tuple(dict.fromkeys(relays))
        for relay in [relay for relay in self._tried if relay not in self._named]:
            self._tried[relay].cancel()
        self._failures = {relay: count for relay, count in self._failures.items() if relay in self._named}
        self._fill()

    def _fill(self) -> None:
        for relay in self._named:
            if len(self._tried) >= self.MOST:
                return
            if relay not in self._tried and relay not in self._resting:
                scope = self._tried[relay] = trio.CancelScope()
                self._nursery.start_soon(self._keep, relay, scope)

    async def _keep(self, relay: P2pAddress, scope: trio.CancelScope) -> None:
        def held() -> None:
            self._failures.pop(relay, None)
            self._held.add(relay)
            self._notify()

        with scope:
            try:
                await self._reserve(relay, held)
            except Exception:  # libp2p raises many kinds; another relay may do, and this one later
                self._failures[relay] = self._failures.get(relay, 0) + 1
        del self._tried[relay]
        if relay in self._held:
            self._held.discard(relay)
            self._notify()
        if relay in self._named:
            self._resting.add(relay)
            self._nursery.start_soon(self._rest, relay)
        self._fill()

    async def _rest(self, relay: P2pAddress) -> None:
        ceiling_s = min(
            self._PAUSE_MOST_S, self._PAUSE_FIRST_S * 2.0 ** min(max(0, self._failures.get(relay, 0) - 1), 16)
        )
        await trio.sleep(ceiling_s * (0.5 + 0.5 * self._jitter()))
        self._resting.discard(relay)
        self._fill()

    def _notify(self) -> None:
        self._changed(tuple(relay for relay in self._named if relay in self._held))
