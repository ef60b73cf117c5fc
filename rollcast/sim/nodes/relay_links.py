"""Simulate links between relays: they are dialled, accepted, and broken by deaths and partitions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from peer.relay.core.state import events
from peer.relay.core.state.events import LinkId
from rollcast.sim.kernel.network import Network, Stream
from rollcast.sim.kernel.process import Process
from rollcast.wire.ids import PeerId

HANDSHAKE_ROUND_TRIPS = 3.0  # handshake of TCP and mutual TLS 1.3, for chunk links and control sessions alike
SILENCE_S = 6.0  # seconds without a packet after which a link counts as broken


class RelayHost(Protocol):
    """A process with a relay, as the other end of a link sees it."""

    name: str
    role: str
    process: Process
    links: Links
    receipt: bytes  # that it gives for a wrong chunk; empty: it denies what it sent

    def handle(self, event: events.Event) -> None: ...

    def received(self, link: LinkId, message: Any) -> None: ...


class End:
    """One end of a link, in one life of its process."""

    __slots__ = ("host", "life", "link", "other", "quiet_since", "stream")

    def __init__(self, host: RelayHost, link: LinkId) -> None:
        self.host = host
        self.link = link
        self.life = host.process.life
        self.other: End | None = None
        self.stream: Stream | None = None  # towards the other end
        self.quiet_since: float | None = None

    def arrived(self, message: Any) -> None:
        """Deliver a message from the other end, in the process's life that opened the link."""
        self.host.process.call_in_life(self.life, self.host.links.arrived, self, message)


class Links:
    """The links of one process.

    Attributes:
        dialable: whether other processes can open links to this one.
    """

    def __init__(self, host: RelayHost, network: Network, hosts: dict[str, RelayHost], random: Random) -> None:
        self.dialable = True
        self._host = host
        self._network = network
        self._hosts = hosts
        self._random = random
        self._ends: dict[LinkId, End] = {}
        self._last = 0

    def dial(self, peer_id: PeerId) -> None:
        """Open a link; the event LinkUp or DialFailed follows."""
        process = self._host.process
        target = self._hosts.get(peer_id)
        if target is None:
            process.later(0.05, self._failed, peer_id)
            return
        round_trip_s = 2.0 * self._network.delay_s(process.name, target.name)
        process.later(HANDSHAKE_ROUND_TRIPS * round_trip_s, self._connect, target)

    def send(self, link: LinkId, message: Any, size_bytes: float, sent: Callable[[], None] | None = None) -> None:
        """Send a message; if the link has ended, the message is discarded."""
        end = self._ends.get(link)
        if end is not None and end.stream is not None:
            end.stream.send(message, size_bytes, sent)

    def close(self, link: LinkId) -> None:
        """Close a link at the core's request; the core gets no more events about it."""
        end = self._ends.pop(link, None)
        if end is not None:
            self._cut(end)

    def killed(self) -> None:
        """Close every link of a killed process; the other ends notice if packets still reach them."""
        ends, self._ends = self._ends, {}
        for end in ends.values():
            self._cut(end)

    def break_silent(self, now: float) -> None:
        """Break the links on which no packet has got through for ``SILENCE_S``."""
        for end in list(self._ends.values()):
            assert end.other is not None
            here, there = self._host.process.name, end.other.host.name
            if self._network.reaches(here, there) and self._network.reaches(there, here):
                end.quiet_since = None
            elif end.quiet_since is None:
                end.quiet_since = now
            elif now - end.quiet_since > SILENCE_S:
                self._cut(end)
                self._lost(end)

    def arrived(self, end: End, message: Any) -> None:
        """Handle a message on a link; messages after the link's end are discarded."""
        if self._ends.get(end.link) is not end:
            return
        if message is _CLOSED:
            self._lost(end)
        else:
            self._host.received(end.link, message)

    def _connect(self, target: RelayHost) -> None:
        here, there = self._host.process.name, target.name
        reached = self._network.reaches(here, there) and self._network.reaches(there, here)
        accepts = target.process.running and not target.process.frozen and target.links.dialable
        if not (reached and accepts):
            self._failed(PeerId(there))
            return
        mine, theirs = End(self._host, self._next()), End(target, target.links._next())
        mine.other, theirs.other = theirs, mine
        mine.stream = Stream(self._network, here, there, theirs.arrived)
        theirs.stream = Stream(self._network, there, here, mine.arrived)
        self._ends[mine.link] = mine
        target.links._ends[theirs.link] = theirs
        target.process.call_in_life(theirs.life, target.links._up, theirs, self._host, False)
        self._up(mine, target, True)

    def _up(self, end: End, other: RelayHost, dialled: bool) -> None:
        if end.link in self._ends:
            self._host.handle(events.LinkUp(end.link, PeerId(other.name), other.role, dialled))

    def _next(self) -> LinkId:
        self._last += 1
        return LinkId(self._last)

    def _failed(self, peer_id: PeerId) -> None:
        self._host.handle(events.DialFailed(peer_id, "nobody there", self._random.random()))

    def _cut(self, end: End) -> None:
        if end.stream is not None:
            end.stream.send(_CLOSED)
        if end.other is not None and end.other.stream is not None:
            end.other.stream.close()

    def _lost(self, end: End) -> None:
        if self._ends.pop(end.link, None) is not None:
            self._host.handle(events.LinkDown(end.link, "the link broke", self._random.random()))


class _Closed:
    """The message that ends a stream."""


_CLOSED = _Closed()
