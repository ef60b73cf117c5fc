"""Replaces links by better ones in the background: a relayed one by a hole-punched one, that one by a direct one.

When a better way is tried to a peer that is linked by a worse one. Decisions only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import structlog

from peer.links.paths import kind_of_link
from peer.links.transport import Link
from peer.transports.transports import Transports
from rollcast.runtime.errors import RollcastError
from rollcast.wire.ids import PeerId

_FIRST_S = 30.0
_MOST_S = 1800.0


@dataclass(slots=True)
class _Waiting:
    addresses: tuple[str, ...]
    try_at_s: float
    tries: int = 0


@dataclass(slots=True)
class PathUpgrades:
    """The peers whose link could be better. Each waits 30 s for its first try, and after each that failed twice as long
    as before, up to half an hour."""

    _waiting: dict[PeerId, _Waiting] = field(default_factory=dict)

    def look(self, better: Iterable[tuple[PeerId, tuple[str, ...]]], jitter: float, now: float) -> None:
        """Who is linked by which ways that could be better.

        Args:
            better: those peers, each with the addresses to try; all others are forgotten.
            jitter: between 0 and 1.
        """
        known, self._waiting = self._waiting, {}
        for peer_id, addresses in better:
            before = known.get(peer_id)
            if before is not None and set(addresses) <= set(before.addresses):
                before.addresses = addresses
                self._waiting[peer_id] = before
            else:  # a way that was not there before has not failed yet
                self._waiting[peer_id] = _Waiting(addresses, now + _wait_s(0, jitter))

    def due(self, now: float) -> tuple[PeerId, tuple[str, ...]] | None:
        """Whose addresses are to be tried now, the one that waits for longest; ``failed`` or another look follows."""
        waiting = [(one.try_at_s, peer_id, one.addresses) for peer_id, one in self._waiting.items()]
        try_at_s, peer_id, addresses = min(waiting, default=(float("inf"), PeerId(""), ()))
        return (peer_id, addresses) if try_at_s <= now else None

    def failed(self, peer_id: PeerId, jitter: float, now: float) -> None:
        """None of them answered."""
        waiting = self._waiting.get(peer_id)
        if waiting is not None:
            waiting.tries += 1
            waiting.try_at_s = now + _wait_s(waiting.tries, jitter)

    def opened(self, peer_id: PeerId) -> None:
        """There is a better link."""
        self._waiting.pop(peer_id, None)


def _wait_s(tries: int, jitter: float) -> float:
    """Between half of the ceiling and all of it."""
    return min(_MOST_S, _FIRST_S * 2.0 ** min(tries, 16)) * (0.5 + 0.5 * jitter)


log = structlog.get_logger()

_LOOK_S = 5.0
# What was asked for on the worse link comes on it still; from the first moment on, everything new goes over the better.
_LINGER_S = 10.0


class LinkHolder(Protocol):
    """Whose links they are. Called on the event loop."""

    def open_links(self) -> Iterable[tuple[Link, str]]:
        """The links that may be replaced, each with the addresses at which we are to dial its peer; empty: none."""

    def take_link(self, link: Link) -> None:
        """Use this link, not started yet, beside the one that is there."""

    def drop_link(self, link: Link, reason: str) -> None:
        """End a link that a better one has replaced; it may have ended already."""


class Upgrading:
    """Make it inside a running event loop. One dial at a time: nobody waits for it."""

    def __init__(self, transports: Transports, holder: LinkHolder, random: Random) -> None:
        self._transports = transports
        self._holder = holder
        self._random = random
        self._upgrades = PathUpgrades()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Measure what is there, and try one better way if one is due."""
        links = {link.peer_id: (link, address) for link, address in self._holder.open_links()}
        for link, _ in links.values():
            self._measure(link)
        better = [(peer, tuple(self._transports.better(*links[peer]))) for peer in links]
        self._upgrades.look(filter(lambda one: one[1], better), self._random.random(), self._loop.time())
        due = self._upgrades.due(self._loop.time())
        if due is not None:
            await self._try(*due, links[due[0]][0])

    def _measure(self, link: Link) -> None:
        measured = link.measure()
        rate = max(measured.sent_bytes_per_second, measured.received_bytes_per_second)
        if rate:
            kind = kind_of_link(link.transport, link.lan)
            self._transports.paths.measured(link.peer_id, kind, rate, self._loop.time())

    async def _try(self, peer_id: PeerId, addresses: tuple[str, ...], worse: Link) -> None:
        try:
            link = await self._transports.dial_first(peer_id, addresses)
        except RollcastError as error:
            log.debug("no better way", peer=peer_id, reason=error.what)
            self._upgrades.failed(peer_id, self._random.random(), self._loop.time())
            return
        if kind_of_link(link.transport, link.lan) == kind_of_link(worse.transport, worse.lan):
            link.close("no better than the link that is there")
            self._upgrades.failed(peer_id, self._random.random(), self._loop.time())
            return
        log.info("better way", peer=peer_id, transport=link.transport, before=worse.transport)
        self._upgrades.opened(peer_id)
        self._holder.take_link(link)
        self._loop.call_later(_LINGER_S, self._holder.drop_link, worse, "replaced by a better way")
