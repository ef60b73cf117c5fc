"""Keep the open sessions of peers, each with a bounded queue of outgoing messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from rollcast.wire.ids import PeerId, Role
from rollcast.wire.proto import rollcast_pb2 as pb

OUTGOING_MESSAGES_MAX = 256  # a peer with so many unread messages has stopped reading


class Channel(Protocol):
    """An open session as the core sees it: who the peer is, and a way to send it messages."""

    peer_id: PeerId
    role: Role
    address: str
    ended_because: str
    said_goodbye: bool

    def send(self, message: pb.CoordinatorMessage) -> None:
        """Send a message, unless the session has ended."""

    def end(self, reason: str) -> None:
        """End the session once its messages have been written."""


class PeerChannel:
    """The outgoing messages of one peer, and whether its session is still open.

    There is one for each of thousands of sessions: a list and a future while it waits take 2 KB less than a deque and
    an event, which has a deque of its own.
    """

    def __init__(self, peer_id: PeerId, role: Role, address: str = "") -> None:
        self.peer_id = peer_id
        self.role = role
        self.address = address
        self.ended_because = ""
        self.said_goodbye = False  # a peer that said goodbye does not return to its leases
        self._messages: list[pb.CoordinatorMessage] = []
        self._change: asyncio.Future[None] | None = None  # that ``next`` waits for

    def send(self, message: pb.CoordinatorMessage) -> None:
        """Queue a message; end the session of a peer that lets the queue fill up."""
        if self.ended_because:
            return
        if len(self._messages) >= OUTGOING_MESSAGES_MAX:
            self._messages.clear()
            self.end("it does not read its messages")
            return
        self._messages.append(message)
        self._wake()

    def end(self, reason: str) -> None:
        """End the session once the queued messages have been written."""
        self.ended_because = self.ended_because or reason
        self._wake()

    async def next(self) -> pb.CoordinatorMessage | None:
        """Return the next message to write; None once the session has ended. Waits as long as the session lasts.

        Only one task may call this at a time.
        """
        while not self._messages:
            if self.ended_because:
                return None
            self._change = asyncio.get_running_loop().create_future()
            try:
                await self._change
            finally:
                self._change = None
        return self._messages.pop(0)

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)


class Sessions:
    """Every open session by peer; a peer's second session replaces its first."""

    def __init__(self) -> None:
        self._channels: dict[PeerId, Channel] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, channel: Channel) -> None:
        """Add the channel of a peer that has sent its Hello."""
        previous = self._channels.pop(channel.peer_id, None)
        if previous is not None:
            previous.end("another session of the same peer replaced it")
        self._channels[channel.peer_id] = channel
        self._empty.clear()

    @property
    def count(self) -> int:
        """Return the number of open sessions."""
        return len(self._channels)

    def has(self, peer_id: PeerId) -> bool:
        """Return whether the peer has an open session."""
        return peer_id in self._channels

    def ended(self, peer_id: PeerId) -> Channel | None:
        """Return the peer's channel if it has ended and is yet to be closed; None otherwise."""
        channel = self._channels.get(peer_id)
        return channel if channel is not None and channel.ended_because else None

    def close(self, channel: Channel) -> bool:
        """Remove a channel; returns False if another session of the peer has replaced it."""
        if self._channels.get(channel.peer_id) is not channel:
            return False
        del self._channels[channel.peer_id]
        if not self._channels:
            self._empty.set()
        return True

    def send(self, peer_id: PeerId, message: pb.CoordinatorMessage) -> None:
        """Queue a message; it is discarded if the peer has no session, as the core will learn that the peer left."""
        channel = self._channels.get(peer_id)
        if channel is not None:
            channel.send(message)

    def stop(self, peer_id: PeerId, reason: str) -> None:
        """Send a peer the order to stop for good, then end its session."""
        channel = self._channels.get(peer_id)
        if channel is not None:
            channel.send(pb.CoordinatorMessage(stop=pb.Stop(reason=reason)))
            channel.end(reason)

    def refuse(self, peer_id: PeerId, code: str, what: str, fix: str) -> None:
        """Send a peer the reason why it is refused, then end its session."""
        channel = self._channels.get(peer_id)
        if channel is not None:
            channel.send(pb.CoordinatorMessage(refused=pb.Refused(code=code, what=what, fix=fix)))
            channel.end(what)

    def end(self, peer_id: PeerId, reason: str) -> None:
        """End a peer's session; the peer may open another."""
        channel = self._channels.get(peer_id)
        if channel is not None:
            channel.end(reason)

    def of_role(self, role: Role) -> Iterable[Channel]:
        """Return the channels of one role, in order of joining."""
        return [channel for channel in self._channels.values() if channel.role == role]

    async def all_closed(self) -> None:
        """Wait until no session is open."""
        await self._empty.wait()
