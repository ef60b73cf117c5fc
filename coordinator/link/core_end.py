"""Serve a gateway in the core's process: its items become calls of LocalCore, as if its peers had called here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import structlog

from coordinator.core.events.actions import AnswerUpload
from coordinator.core.events.events import Event, PeerJoined
from coordinator.link import frames
from coordinator.link.connection import LinkConnection
from coordinator.rpc.core_link import LocalCore, NotNow, Opening
from rollcast.runtime.errors import MalformedMessage, ProtocolMismatch, RateLimited, RollcastError, WrongKey
from rollcast.wire.identity.certificates import caller_from_der
from rollcast.wire.ids import PeerId, Role, RunId
from rollcast.wire.joining.error_json import error_to_json
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

GATEWAYS_MAX = 64
HELLO_DEADLINE_S = 10.0
TASKS_MAX = 65_536  # sessions that wait to be opened, accusations and renewals of one link
RESUMED_AT_ONCE = 32  # sessions of a gateway that comes back which one turn of the loop opens
CLOSED_A_TURN = 32  # sessions of a gateway that is lost which one turn of the loop closes
EARLY_MAX = 1024  # events of a session that waits to be opened
NAME_LENGTH_MAX = 64
_INTERRUPTED = "the coordinator stops, and another one continues the run"


@dataclass(frozen=True, slots=True)
class CoreEndSettings:
    """What links need besides the core.

    Args:
        ca_pem: certificate of the run's authority.
        issue: returns the certificate (PEM) that a gateway shows to peers, for its request, id and hosts.
        tokenizer: returns the packed file of the run's tokenizer (coordinator/rpc/tokenizer.py).
    """

    run_id: RunId
    ca_pem: bytes
    issue: Callable[[bytes, PeerId, tuple[str, ...]], bytes]
    tokenizer: Callable[[], Awaitable[tuple[str, bytes] | None]]
    router_replay: bool


class RemoteChannel:
    """The session of a peer at a gateway; see Channel.

    Args:
        number: the gateway's of the session.
        is_interrupted: whether this coordinator ends, and another one continues the run.
    """

    def __init__(
        self, number: int, joined: PeerJoined, link: LinkConnection, is_interrupted: Callable[[], bool]
    ) -> None:
        self.peer_id = joined.peer_id
        self.role = cast(Role, joined.role)
        self.address = joined.address
        self.ended_because = ""
        self.said_goodbye = False
        self._number = number
        self._link = link
        self._is_interrupted = is_interrupted

    def send(self, message: pb.CoordinatorMessage) -> None:
        """Have the gateway send a message."""
        if not self.ended_because:
            self._link.send(frames.Deliver(self._number, message.SerializeToString()))

    def end(self, reason: str) -> None:
        """Have the gateway end the session; its Close will follow.

        When the coordinator is interrupted, the link ends instead: the gateway keeps its sessions for the next one.
        """
        if self.ended_because:
            return
        self.ended_because = reason
        if self._is_interrupted():
            self._link.end(_INTERRUPTED)
        else:
            self._link.send(frames.End(self._number, reason))


@dataclass(slots=True)
class _Session:
    channel: RemoteChannel
    is_open: bool = False
    is_refused: bool = False  # what it still says until its Close is of no interest
    early: list[Event] = field(default_factory=list)  # of a session that is being resumed


class CoreEnd:
    """The core's end of one link.

    Args:
        ends: the ends of all links, to which this one belongs while it is connected.
    """

    def __init__(self, core: LocalCore, settings: CoreEndSettings, ends: set[CoreEnd]) -> None:
        self._core = core
        self._settings = settings
        self._ends = ends
        self.link = LinkConnection(self._received, self._lost, self._made)
        self.name = ""  # of the gateway, once it said Hello
        self._peer_id: PeerId | None = None  # that its certificate names; None on a Unix socket
        self._hello_timer: asyncio.TimerHandle | None = None
        self._sessions: dict[int, _Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._resuming = asyncio.Semaphore(RESUMED_AT_ONCE)

    @property
    def session_count(self) -> int:
        """Return how many peers have a session at this gateway."""
        return sum(session.is_open for session in self._sessions.values())

    def _received(self, body: bytes) -> None:
        for item in frames.items_to_core(body):
            if self.name or isinstance(item, frames.Hello | frames.Beat):
                self._take(item)
            else:
                raise MalformedMessage("a gateway must begin with Hello")

    def _take(self, item: frames.ToCore) -> None:
        match item:
            case frames.Upload():
                self._core.upload(self._peer(item.session), item.rollout, partial(self._answer, item.number))
            case frames.Told():
                self._told(item)
            case frames.Beat():
                pass
            case frames.Open():
                self._open(item)
            case frames.Close():
                self._close(item)
            case frames.Malformed():
                named = pb.Rollout(
                    lease_id=item.lease_id, fencing_token=item.fencing_token, sample_index=item.sample_index
                )
                peer_id = self._peer(item.session)
                self._core.upload_malformed(peer_id, named, item.problem, partial(self._answer, item.number))
            case frames.Accuse():
                self._start(self._accused(self._session(item.session), item.accusation))
            case frames.Renew():
                self._start(self._renew(self._session(item.session), item.csr_pem))
            case frames.Ask():
                self._start(self._reply(item.what))
            case frames.Hello():
                self._start(self._greet(item))

    # ---------------------------------------------------------------- the link

    def _made(self) -> None:
        """Check what connected, before anything that it sends is read."""
        if self._core.is_interrupted:  # it has just ended this link, and the gateway dialled again
            self.link.abort(_INTERRUPTED)
            return
        tls = self.link.ssl_object
        try:
            if len(self._ends) >= GATEWAYS_MAX:
                raise RateLimited(f"{GATEWAYS_MAX} gateways are connected")
            if tls is not None:
                self._peer_id = self._gateway_of(tls.getpeercert(binary_form=True) or b"")
        except RollcastError as error:
            log.warning("gateway refused", what=error.what)
            self.link.abort(error.what)
            return
        self._ends.add(self)
        late = "it did not say Hello"
        self._hello_timer = asyncio.get_running_loop().call_later(HELLO_DEADLINE_S, self.link.abort, late)

    def _gateway_of(self, certificate_der: bytes) -> PeerId:
        caller = caller_from_der(certificate_der)
        if caller.role != "gateway" or caller.run_id != self._settings.run_id:
            raise WrongKey(f"the certificate {caller.uri} is not one of a gateway of this run")
        return caller.peer_id

    async def _greet(self, hello: frames.Hello) -> None:
        try:
            if hello.format != frames.FORMAT:
                raise ProtocolMismatch(
                    "this gateway and the core cannot understand each other",
                    cause=f"the gateway is {hello.software}, with frames of format {hello.format}, not {frames.FORMAT}",
                    fix="run the same release of Rollcast on both",
                )
            issue, peer_id = self._settings.issue, self._peer_id or PeerId(hello.peer_id)
            certificate_pem = await asyncio.to_thread(issue, hello.csr_pem, peer_id, hello.hosts)
        except RollcastError as error:
            self.link.send(frames.Refuse(error_to_json(error)))
            self.link.end(error.what)
            return
        self.name = hello.name[:NAME_LENGTH_MAX] or "gateway"
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        log.info("gateway linked", gateway=self.name, software=hello.software[:NAME_LENGTH_MAX])
        settings = self._settings
        self.link.send(
            frames.Ready(
                settings.run_id, settings.ca_pem, certificate_pem, settings.router_replay, self._core.welcome_digest
            )
        )

    def _lost(self, reason: str) -> None:
        self._ends.discard(self)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        for task in self._tasks:
            task.cancel()
        for session in self._sessions.values():
            session.channel.ended_because = session.channel.ended_because or "its gateway was lost"
        if self.name:
            log.warning("gateway lost", gateway=self.name, sessions=len(self._sessions), reason=reason)
        self._close_some(deque(session.channel for session in self._sessions.values() if session.is_open))
        self._sessions.clear()

    def _close_some(self, ended: deque[RemoteChannel]) -> None:
        """Close ended sessions, which may be thousands; the loop serves others between two turns."""
        for _ in range(min(CLOSED_A_TURN, len(ended))):
            self._core.close(ended.popleft())
        if ended:
            asyncio.get_running_loop().call_soon(self._close_some, ended)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._tasks) >= TASKS_MAX:
            work.close()
            raise MalformedMessage(f"a gateway has at most {TASKS_MAX} requests in progress")
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._core.fail(error)

    # ---------------------------------------------------------------- sessions

    def _session(self, number: int) -> _Session:
        session = self._sessions.get(number)
        if session is None:
            raise MalformedMessage(f"a gateway names session {number}, which it has not opened")
        return session

    def _peer(self, number: int) -> PeerId:
        return self._session(number).channel.peer_id

    def _open(self, item: frames.Open) -> None:
        if item.session in self._sessions:
            raise MalformedMessage(f"a gateway opens session {item.session} twice")
        channel = RemoteChannel(item.session, item.joined, self.link, lambda: self._core.is_interrupted)
        session = self._sessions[item.session] = _Session(channel)
        self._start(self._resumed(item, session) if item.resumed else self._opened(item, session))

    async def _resumed(self, item: frames.Open, session: _Session) -> None:
        """Open a session among thousands that come at once; the loop serves others between two turns."""
        async with self._resuming:
            await self._opened(item, session)
            await asyncio.sleep(0)

    async def _opened(self, item: frames.Open, session: _Session) -> None:
        opening = Opening(item.joined, item.instance_id, item.address, resumed=item.resumed)
        try:
            invite = await self._core.open(opening, session.channel)
        except NotNow as reason:
            if self._core.is_interrupted:
                self.link.abort(_INTERRUPTED)
                return
            session.is_refused = True
            self.link.send(frames.NotOpened(item.session, str(reason), ""))
        except RollcastError as error:
            session.is_refused = True
            self.link.send(frames.NotOpened(item.session, "", error_to_json(error)))
        else:
            if self._sessions.get(item.session) is not session:  # it has ended meanwhile
                self._core.close(session.channel)
                return
            session.is_open = True
            self.link.send(frames.Opened(item.session, invite))
            for event in session.early:
                self._core.apply(session.channel.peer_id, event)
            session.early.clear()

    def _told(self, item: frames.Told) -> None:
        session, event = self._session(item.session), frames.event_in(item)
        if event.peer_id != session.channel.peer_id:
            raise MalformedMessage("a gateway passes on an event of another peer than its session's")
        if session.is_open:
            self._core.apply(event.peer_id, event)
        elif session.is_refused:
            return
        elif len(session.early) < EARLY_MAX:
            session.early.append(event)
        else:
            raise MalformedMessage(f"a gateway passes on more than {EARLY_MAX} events of a session that is not open")

    def _close(self, item: frames.Close) -> None:
        session = self._session(item.session)
        del self._sessions[item.session]
        session.channel.ended_because = session.channel.ended_because or item.reason
        session.channel.said_goodbye = item.finished
        if session.is_open:
            self._core.close(session.channel)

    async def _accused(self, session: _Session, accusation: bytes) -> None:
        try:
            await self._core.accused(session.channel.peer_id, pb.Accusation.FromString(accusation))
        except RollcastError as error:
            session.channel.end(error.what)

    async def _renew(self, session: _Session, csr_pem: bytes) -> None:
        try:
            await self._core.renew(session.channel, csr_pem)
        except RollcastError as error:
            session.channel.end(error.what)

    # ---------------------------------------------------------------- answers

    def _answer(self, number: int, answer: AnswerUpload) -> None:
        self.link.send(frames.Verdict(number, answer.accepted, answer.reason))

    async def _reply(self, what: str) -> None:
        value: Any = None
        try:
            match what:
                case "route_shape":
                    value = await self._core.route_shape()
                case "tokenizer":
                    value = await self._settings.tokenizer()
                case _:
                    raise MalformedMessage(f"a gateway asks for {what[:NAME_LENGTH_MAX]!r}")
        except RollcastError as error:
            self.link.send(frames.answer(what, None, error_to_json(error)))
        else:
            self.link.send(frames.answer(what, value))
