"""Replace links by better ones in the background: a relayed one by a hole-punched one, that one by a direct one.

``PathUpgrades`` decides which peer is tried when, without I/O; ``Upgrading`` dials and swaps the links.
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
    """Decides when a better address of a peer is dialled.

    A peer waits 30 s for its first try and twice as long after each one that failed, up to half an hour.
    """

    _waiting: dict[PeerId, _Waiting] = field(default_factory=dict)

    def update(self, better: Iterable[tuple[PeerId, tuple[str, ...]]], jitter: float, now: float) -> None:
        """Replace the peers whose link could be better.

        Args:
            better: those peers, each with the addresses to try; the tries of all other peers are discarded.
            jitter: between 0 and 1.
        """
        known, self._waiting = self._waiting, {}
        for peer_id, addresses in better:
            before = known.get(peer_id)
            if before is not None and set(addresses) <= set(before.addresses):
                before.addresses = addresses
                self._waiting[peer_id] = before
            else:  # an address that was not known before has not failed yet
                self._waiting[peer_id] = _Waiting(addresses, now + _wait_s(0, jitter))

    def due(self, now: float) -> tuple[PeerId, tuple[str, ...]] | None:
        """Return the peer that has been due for longest and its addresses; None if no peer is due.

        The caller answers with ``failed``, ``opened`` or another ``update``.
        """
        waiting = [(one.try_at_s, peer_id, one.addresses) for peer_id, one in self._waiting.items()]
        try_at_s, peer_id, addresses = min(waiting, default=(float("inf"), PeerId(""), ()))
        return (peer_id, addresses) if try_at_s <= now else None

    def failed(self, peer_id: PeerId, jitter: float, now: float) -> None:
        """Wait longer than before, because no better link came about."""
        waiting = self._waiting.get(peer_id)
        if waiting is not None:
            waiting.tries += 1
            waiting.try_at_s = now + _wait_s(waiting.tries, jitter)

    def opened(self, peer_id: PeerId) -> None:
        """Stop the tries, because a better link is open."""
        self._waiting.pop(peer_id, None)

    def hurry(self, peer_id: PeerId, now: float) -> None:
        """Let a peer be due now, because its link has become slow."""
        waiting = self._waiting.get(peer_id)
        if waiting is not None:
            waiting.try_at_s = min(waiting.try_at_s, now)


def _wait_s(tries: int, jitter: float) -> float:
    """Return a wait between half of its ceiling and all of it, in seconds."""
    return min(_MOST_S, _FIRST_S * 2.0 ** min(tries, 16)) * (0.5 + 0.5 * jitter)


log = structlog.get_logger()

_CHECK_EVERY_S = 5.0
_LOOK_EVERY_S = 0.5  # for links that have become slow
# Chunks that were requested on the worse link still come on it; new traffic uses the better link at once.
_LINGER_S = 10.0


class LinkHolder(Protocol):
    """The owner of the links (the relay). Its methods are called on the event loop."""

    def open_links(self) -> Iterable[tuple[Link, str]]:
        """Return the links that may be replaced, each with the addresses at which to dial its peer; may be empty."""

    def take_link(self, link: Link) -> None:
        """Start this link and use it instead of the one that is open to the same peer."""

    def drop_link(self, link: Link, reason: str) -> None:
        """Close a link that a better one has replaced; it may be closed already."""


class Upgrading:
    """Dials better addresses one at a time, because no one waits for them. Make it inside a running event loop."""

    def __init__(self, transports: Transports, holder: LinkHolder, random: Random) -> None:
        self._transports = transports
        self._holder = holder
        self._random = random
        self._upgrades = PathUpgrades()
        self._loop = asyncio.get_running_loop()
        self._slow: set[PeerId] = set()
        self._check_at_s = 0.0

    async def run(self) -> None:
        """Check the links every few seconds, and at once when one has become slow, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self.look() or self._loop.time() >= self._check_at_s:
                self._check_at_s = self._loop.time() + _CHECK_EVERY_S
                await self.check()

    def look(self) -> bool:
        """Take note of links that have become far slower than they were; returns whether there are new ones.

        Their rates count from now on, so that other addresses of their peers rank before them.
        """
        known, self._slow = self._slow, set()
        for link, _ in self._holder.open_links():
            measured = link.measure()
            if not measured.slow:
                continue
            self._slow.add(link.peer_id)
            if link.peer_id not in known:
                log.info("link has become slow", peer=link.peer_id, transport=link.transport)
                kind = kind_of_link(link.transport, link.lan)
                self._transports.paths.slowed(link.peer_id, kind, self._loop.time())
        return bool(self._slow - known)

    async def check(self) -> None:
        """Measure the open links, and dial a better address of one peer if one is due."""
        links = {link.peer_id: (link, address) for link, address in self._holder.open_links()}
        for link, _ in links.values():
            if link.peer_id not in self._slow:
                self._measure(link)
        better = [(peer, tuple(self._transports.better(*links[peer]))) for peer in links]
        self._upgrades.update(filter(lambda one: one[1], better), self._random.random(), self._loop.time())
        for peer_id in self._slow:
            self._upgrades.hurry(peer_id, self._loop.time())
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
            log.debug("no better path", peer=peer_id, reason=error.what)
            self._upgrades.failed(peer_id, self._random.random(), self._loop.time())
            return
        if kind_of_link(link.transport, link.lan) == kind_of_link(worse.transport, worse.lan):
            link.close("no better than the open link")
            self._upgrades.failed(peer_id, self._random.random(), self._loop.time())
            return
        log.info("better path", peer=peer_id, transport=link.transport, before=worse.transport)
        self._upgrades.opened(peer_id)
        self._holder.take_link(link)
        self._loop.call_later(_LINGER_S, self._holder.drop_link, worse, "replaced by a better path")
