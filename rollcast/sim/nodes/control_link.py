"""Keep a simulated process's session with the coordinator open, with heartbeats and reconnects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from coordinator.core.events.events import PeerJoined
from rollcast.runtime.waits import backoff_delays_s
from rollcast.sim.kernel.process import Process
from rollcast.sim.kernel.sessions import Session
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.nodes.relay_links import HANDSHAKE_ROUND_TRIPS
from rollcast.sim.world import Ground

_FIRST_S, _MOST_S = 0.2, 5.0  # seconds between two attempts, as in peer/session/session.py


class Addresses:
    """The coordinators that a client knows of, of which it tries the next one when one does not answer."""

    def __init__(self, coordinators: Sequence[CoordinatorNode]) -> None:
        self._coordinators = coordinators
        self._tried = 0

    @property
    def current(self) -> CoordinatorNode:
        return self._coordinators[self._tried]

    def failed(self) -> None:
        """Try the next one from now on."""
        self._tried = (self._tried + 1) % len(self._coordinators)


class ControlLink:
    """The connection to the coordinator during one life of a process.

    Args:
        joined: returns the first message of a session.
        heartbeat: returns the message to send at every heartbeat.
        on_message: called with each message except the welcome and the end of a session.
        on_open: called with the welcome's content.
        on_lost: called with the reason for which an open session ended.
    """

    def __init__(
        self,
        ground: Ground,
        process: Process,
        addresses: Addresses,
        joined: Callable[[], PeerJoined],
        heartbeat: Callable[[], Any],
        on_message: Callable[[str, Any], None],
        on_open: Callable[[Any], None],
        on_lost: Callable[[str], None],
        random: Random,
    ) -> None:
        self._ground = ground
        self._process = process
        self._addresses = addresses
        self._coordinator = addresses.current
        self._joined = joined
        self._heartbeat = heartbeat
        self._on_message = on_message
        self._on_open = on_open
        self._on_lost = on_lost
        self._random = random
        self._session: Session | None = None
        self._delays = self._new_delays()
        self._silent_since: float | None = None

    @property
    def open(self) -> bool:
        """Whether the coordinator has welcomed the current session."""
        return self._session is not None and self._session.open

    def dial(self) -> None:
        """Begin a session; the link retries until the coordinator welcomes one."""
        self._coordinator = self._addresses.current
        session = Session(self._ground.network, self._process, self, self._coordinator, self._coordinator)
        self._session = session
        handshake_s = HANDSHAKE_ROUND_TRIPS * 2.0 * self._ground.network.delay_s(session.name, self._coordinator.name)
        self._process.later(handshake_s, lambda: session.send_to_coordinator(self._joined()))
        self._process.later(handshake_s + self._ground.settings.connection_timeout_s, self._no_welcome, session)

    def send(self, message: Any) -> None:
        """Send a message if a session is open; else discard it, since a new session reports everything again."""
        if self._session is not None and self._session.open:
            self._session.send_to_coordinator(message)

    def close(self, reason: str, *, finished: bool = False) -> None:
        """End the session for good."""
        session, self._session = self._session, None
        if session is not None:
            session.hang_up(reason, finished=finished)

    def received(self, session: Session, kind: str, content: Any) -> None:
        """Handle a message from the coordinator."""
        if self._session is not session:
            return
        if kind == "welcome":
            session.open, self._silent_since = True, None
            self._on_open(content)
            self._beat(session)
        else:
            self._on_message(kind, content)

    def ended(self, session: Session, reason: str) -> None:
        """Handle the end of a session: open another one after a backoff."""
        if self._session is not session:
            return
        was_open, session.open, self._session = session.open, False, None
        if was_open:
            self._delays = self._new_delays()
            self._on_lost(reason)
        self._addresses.failed()
        self._process.later(next(self._delays), self.dial)

    def _no_welcome(self, session: Session) -> None:
        if self._session is session and not session.open:
            session.hang_up("no welcome")
            self.ended(session, "no welcome")

    def _beat(self, session: Session) -> None:
        if self._session is not session:
            return
        if not self._ground.network.cuts:
            self._silent_since = None
        elif self._is_silent():
            session.hang_up("no answer")
            self.ended(session, "no answer")
            return
        session.send_to_coordinator(self._heartbeat())
        self._process.later(self._ground.settings.heartbeat_s, self._beat, session)

    def _is_silent(self) -> bool:
        """Return whether no packet has got through for longer than the connection timeout."""
        network, here, there = self._ground.network, self._process.name, self._coordinator.name
        if network.reaches(here, there) and network.reaches(there, here):
            self._silent_since = None
            return False
        if self._silent_since is None:
            self._silent_since = self._ground.agenda.now
        return self._ground.agenda.now - self._silent_since > self._ground.settings.connection_timeout_s

    def _new_delays(self) -> Iterator[float]:
        return backoff_delays_s(self._random, first_s=_FIRST_S, most_s=_MOST_S)
