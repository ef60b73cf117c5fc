"""Simulate a peer's control session with the coordinator: two ordered streams whose end each side notices by itself."""

from __future__ import annotations

from typing import Any, Protocol

from rollcast.sim.kernel.network import Network, Stream
from rollcast.sim.kernel.process import Process


class PeerEnd(Protocol):
    """The peer's end of a session: it handles messages from the coordinator."""

    def received(self, session: Session, kind: str, content: Any) -> None: ...

    def ended(self, session: Session, reason: str) -> None: ...


class CoordinatorEnd(Protocol):
    """The coordinator's end of a session: it handles messages from a peer."""

    def received(self, session: Session, message: Any) -> None: ...

    def hung_up(self, session: Session, reason: str, *, finished: bool) -> None: ...


class Session:
    """One session, from Hello to its end.

    Args:
        peer, coordinator: the two processes; messages that arrive after their current lives ended are discarded.
    """

    __slots__ = ("_coordinator", "_coordinator_end", "_down", "_lives", "_peer", "_peer_end", "_up", "name", "open")

    def __init__(
        self, network: Network, peer: Process, peer_end: PeerEnd, coordinator: Process, coordinator_end: CoordinatorEnd
    ) -> None:
        self.name = peer.name
        self.open = False  # once the peer has its welcome
        self._peer = peer
        self._peer_end = peer_end
        self._coordinator = coordinator
        self._coordinator_end = coordinator_end
        self._lives = (peer.life, coordinator.life)
        self._up = Stream(network, peer.name, coordinator.name, self._arrived)
        self._down = Stream(network, coordinator.name, peer.name, self._came_back)

    def send_to_coordinator(self, message: Any) -> None:
        """Send a message from the peer to the coordinator."""
        self._up.send(message)

    def send_to_peer(self, kind: str, content: Any = None) -> None:
        """Send a message from the coordinator to the peer."""
        self._down.send((kind, content))

    def hang_up(self, reason: str, *, finished: bool = False) -> None:
        """Close the connection from the peer, after Goodbye if ``finished``; nothing more reaches the peer."""
        self._up.send(_End(reason, finished))
        self._down.close()

    def dismiss(self, reason: str) -> None:
        """Close the connection from the coordinator; nothing more reaches the coordinator."""
        self._down.send(_End(reason, False))
        self._up.close()

    def _arrived(self, message: Any) -> None:
        life = self._lives[1]
        if type(message) is _End:
            self._coordinator.call_in_life(life, self._hung_up, message)
        else:
            self._coordinator.call_in_life(life, self._coordinator_end.received, self, message)

    def _hung_up(self, end: _End) -> None:
        self._coordinator_end.hung_up(self, end.reason, finished=end.finished)

    def _came_back(self, message: Any) -> None:
        life = self._lives[0]
        if type(message) is _End:
            self._peer.call_in_life(life, self._peer_end.ended, self, message.reason)
        else:
            self._peer.call_in_life(life, self._peer_end.received, self, *message)


class _End:
    """The message that closes a stream."""

    __slots__ = ("finished", "reason")

    def __init__(self, reason: str, finished: bool) -> None:
        self.reason = reason
        self.finished = finished
