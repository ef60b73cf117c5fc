"""Be the core to the peers of a gateway: what their calls ask and tell goes over the link to the core's process.

While there is no link, sessions stay open, uploads are answered ``busy``, and no session begins. A new link begins with
all sessions that are open, each with what its peer reported last. If the core comes back with other settings, sessions
end instead, because peers learn settings when a session begins.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from coordinator.core.events.actions import AnswerUpload
from coordinator.core.events.events import Event
from coordinator.link import frames
from coordinator.link.connection import LinkConnection
from coordinator.link.held_session import HeldSession
from coordinator.rpc.core_link import NotNow, Opening
from coordinator.shell.pending_calls import Answered
from coordinator.shell.sessions import PeerChannel
from rollcast.runtime.errors import MalformedMessage, RollcastError, Unreachable
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import FencingToken, LeaseId, PeerId, UploadId
from rollcast.wire.joining.error_json import error_from_json
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Rollout
from rollcast.wire.routes import RouteShape

log = structlog.get_logger()

GATHER_S = 0.04  # between two frames: what reaches the core together is decided, stored and answered together
OPEN_DEADLINE_S = 30.0
ANSWER_DEADLINE_S = 60.0
UPLOADS_WAITING_BYTES_MAX = 64 << 20  # on the link; beyond it uploads are answered ``busy``
ACCUSATIONS_KEPT = 16  # of one session, while there is no link
_AWAY = "the gateway has no connection to the coordinator"


@dataclass(slots=True)
class _Session:
    number: int
    opening: Opening
    channel: PeerChannel
    held: HeldSession
    opened: asyncio.Future[str] | None  # the invite, while it is being opened; None afterwards
    is_known: bool = True  # to the core of the present link
    accusations: deque[bytes] = field(default_factory=lambda: deque(maxlen=ACCUSATIONS_KEPT))  # that no core has heard


@dataclass(slots=True)
class _Upload:
    lease_id: LeaseId
    sample_index: int
    answered: Answered

    def settle(self, *, accepted: bool, reason: str) -> None:
        self.answered(AnswerUpload(UploadId(0), self.lease_id, self.sample_index, accepted, reason))


class RemoteCore:
    """A CoreLink to the core of another process.

    Args:
        hello: returns the first item of a link.
        ready: called with the core's answer to it.
    """

    def __init__(self, hello: Callable[[], frames.Hello], ready: Callable[[frames.Ready], None]) -> None:
        self._hello = hello
        self._ready = ready
        self._link: LinkConnection | None = None  # None until the core has answered Hello
        self._router_replay = False
        self._welcome = b""  # digest of what peers were welcomed with
        self._sessions: dict[int, _Session] = {}
        self._by_peer: dict[PeerId, _Session] = {}
        self._by_channel: dict[PeerChannel, _Session] = {}
        self._uploads: dict[int, _Upload] = {}
        self._questions: dict[str, asyncio.Future[frames.Answer]] = {}
        self._route_shape: RouteShape | None = None
        self._numbers = itertools.count(1)
        self.was_linked = False
        """Whether there was a link since its reader set this to False."""
        self.failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """A defect, or the core's refusal of this gateway."""
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the run has ended for good."""

    # ---------------------------------------------------------------- the link

    def new_link(self) -> tuple[LinkConnection, asyncio.Future[str]]:
        """Return the protocol of a connection that is being dialled, and the reason why it ended once it has."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def lost(reason: str) -> None:
            self._lost(link)
            if not ended.done():
                ended.set_result(reason)

        link = LinkConnection(lambda body: self._received(link, body), lost, gather_s=GATHER_S)
        return link, ended

    def is_linked_by(self, link: LinkConnection) -> bool:
        """Return whether this link is the one to the core."""
        return self._link is link

    def greet(self, link: LinkConnection) -> None:
        """Begin a link that is connected."""
        link.send(self._hello())

    def _received(self, link: LinkConnection, body: bytes) -> None:
        for item in frames.items_to_gateway(body):
            if isinstance(item, frames.Ready):
                self._linked(link, item)
            elif isinstance(item, frames.Refuse):
                self.fail(_error_in(item.error))
            elif self._link is link:
                self._take(item)
            elif not isinstance(item, frames.Beat):
                raise MalformedMessage("the core must begin with Ready")

    def _linked(self, link: LinkConnection, ready: frames.Ready) -> None:
        if self._link is not None and self._link is not link:  # silent, and a core that leads has answered
            self._lost(self._link)
        self._link, self._router_replay, self.was_linked = link, ready.router_replay, True
        self._ready(ready)
        changed, self._welcome = self._welcome not in (b"", ready.welcome), ready.welcome
        for session in [*self._sessions.values()]:
            if changed:
                session.channel.end("the coordinator came back with other settings")
            elif session.opened is None:
                self._resume(session, link)
        log.info("linked to the core", sessions=len(self._sessions))

    def _resume(self, session: _Session, link: LinkConnection) -> None:
        opening, session.is_known = session.opening, True
        link.send(frames.Open(session.number, session.held.resumed(), opening.instance_id, opening.address, True))
        for event in session.held.repeated():
            link.send(frames.told(session.number, event))
        for accusation in session.accusations:
            link.send(frames.Accuse(session.number, accusation))
        session.accusations.clear()

    def _lost(self, link: LinkConnection) -> None:
        if self._link is not link:
            return
        self._link = None
        for session in self._sessions.values():
            session.is_known = False
        uploads, self._uploads = self._uploads, {}
        for upload in uploads.values():
            upload.settle(accepted=False, reason="busy")  # the peer repeats it; the core knows whether it is stored
        for session in [*self._sessions.values()]:
            if session.opened is not None and not session.opened.done():
                session.opened.set_exception(NotNow(_AWAY))
        for question in self._questions.values():
            if not question.done():
                question.set_exception(Unreachable(_AWAY))

    def _take(self, item: frames.ToGateway) -> None:
        match item:
            case frames.Verdict():
                if (upload := self._uploads.pop(item.number, None)) is not None:
                    upload.settle(accepted=item.accepted, reason=item.reason)
            case frames.Deliver():
                if (session := self._sessions.get(item.session)) is not None:
                    message = pb.CoordinatorMessage.FromString(item.message)
                    session.held.delivered(message)
                    session.channel.send(message)
            case frames.End():
                if (session := self._sessions.get(item.session)) is not None:
                    session.channel.end(item.reason)
            case frames.Opened():
                self._opened(item)
            case frames.NotOpened():
                self._not_opened(item)
            case frames.Answer():
                question = self._questions.get(item.what)
                if question is not None and not question.done():
                    question.set_result(item)
            case frames.Over():
                if not self.over.done():
                    self.over.set_result(item.reason)

    def _send(self, session: _Session, item: frames.ToCore) -> None:
        if self._link is not None and session.is_known:
            self._link.send(item)

    # ---------------------------------------------------------------- sessions

    async def open(self, opening: Opening, channel: PeerChannel) -> str:
        """See CoreLink."""
        if self._link is None:
            raise NotNow(_AWAY)
        opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        session = _Session(next(self._numbers), opening, channel, HeldSession(opening.joined), opened)
        self._sessions[session.number] = self._by_channel[channel] = session
        item = frames.Open(session.number, opening.joined, opening.instance_id, opening.address, False)
        self._send(session, item)
        try:
            async with deadline(OPEN_DEADLINE_S, "the coordinator to open a session"):
                invite = await opened
        except BaseException:
            self.close(channel)
            raise
        session.opened = None
        session.held.joined = replace(session.held.joined, invite=invite)
        self._by_peer[channel.peer_id] = session
        return invite

    def _opened(self, item: frames.Opened) -> None:
        session = self._sessions.get(item.session)
        if session is not None and session.opened is not None and not session.opened.done():
            session.opened.set_result(item.invite)

    def _not_opened(self, item: frames.NotOpened) -> None:
        session = self._sessions.get(item.session)
        if session is None:
            return
        refusal = _error_in(item.error) if item.error else NotNow(item.not_now)
        if session.opened is not None:
            if not session.opened.done():
                session.opened.set_exception(refusal)
            return
        if isinstance(refusal, RollcastError):  # it was resumed, and its peer must not retry
            refused = pb.Refused(code=refusal.code, what=refusal.what, fix=refusal.fix)
            session.channel.send(pb.CoordinatorMessage(refused=refused))
        session.channel.end(refusal.what if isinstance(refusal, RollcastError) else item.not_now)

    def close(self, channel: PeerChannel) -> None:
        """See CoreLink."""
        session = self._by_channel.pop(channel, None)
        if session is None:
            return
        del self._sessions[session.number]
        if self._by_peer.get(channel.peer_id) is session:
            del self._by_peer[channel.peer_id]
        self._send(session, frames.Close(session.number, channel.ended_because, channel.said_goodbye))

    def apply(self, peer_id: PeerId, event: Event) -> None:
        """See CoreLink."""
        session = self._by_peer.get(peer_id)
        if session is not None and isinstance(event, frames.SessionEvent):
            session.held.note(event, heard=session.is_known)
            self._send(session, frames.told(session.number, event))

    async def accused(self, accuser: PeerId, message: pb.Accusation) -> None:
        """See CoreLink. The core's end checks it, and ends the session of a peer whose report is out of bounds."""
        session, accusation = self._by_peer.get(accuser), message.SerializeToString()
        if session is not None and session.is_known:
            self._send(session, frames.Accuse(session.number, accusation))
        elif session is not None:
            session.accusations.append(accusation)

    async def renew(self, channel: PeerChannel, csr_pem: bytes) -> None:
        """See CoreLink. Without a core the peer's request is lost, and it repeats it."""
        if (session := self._by_channel.get(channel)) is not None:
            self._send(session, frames.Renew(session.number, csr_pem))

    async def invite_of(self, peer_id: PeerId) -> str:
        """See CoreLink.

        Raises:
            Unreachable: the peer has no session here; it uploads where it has one.
        """
        return self._session_of(peer_id).held.joined.invite

    def _session_of(self, peer_id: PeerId) -> _Session:
        session = self._by_peer.get(peer_id)
        if session is None:
            raise Unreachable("this peer has no session at this gateway", fix="upload where the session is open")
        return session

    # ---------------------------------------------------------------- uploads

    def expects(self, peer_id: PeerId, message: pb.Rollout) -> bool:
        """See CoreLink. Only the core knows who holds an attempt, and a gateway has the time to read all uploads."""
        return True

    def upload(self, peer_id: PeerId, rollout: Rollout, answered: Answered) -> None:
        """See CoreLink."""
        upload = _Upload(rollout.lease_id, rollout.sample_index, answered)
        if (session := self._may_upload(peer_id)) is None:
            upload.settle(accepted=False, reason="busy")
        else:
            self._send(session, frames.Upload(self._waiting(upload), session.number, rollout))

    def upload_malformed(self, peer_id: PeerId, message: pb.Rollout, problem: str, answered: Answered) -> None:
        """See CoreLink."""
        lease_id, token, index = LeaseId(message.lease_id), FencingToken(message.fencing_token), message.sample_index
        upload = _Upload(lease_id, index, answered)
        if (session := self._may_upload(peer_id)) is None:
            upload.settle(accepted=False, reason="busy")
        else:
            number = self._waiting(upload)
            self._send(session, frames.Malformed(number, session.number, lease_id, token, index, problem))

    def _may_upload(self, peer_id: PeerId) -> _Session | None:
        link = self._link
        if link is None or link.waiting_bytes > UPLOADS_WAITING_BYTES_MAX:
            return None
        session = self._by_peer.get(peer_id)
        return session if session is not None and session.is_known else None

    def _waiting(self, upload: _Upload) -> int:
        number = next(self._numbers)
        self._uploads[number] = upload
        return number

    # ---------------------------------------------------------------- questions

    async def route_shape(self) -> RouteShape | None:
        """See CoreLink."""
        if self._router_replay and self._route_shape is None:
            self._route_shape = await self._ask("route_shape", RouteShape | None)
        return self._route_shape

    async def tokenizer(self) -> tuple[str, bytes] | None:
        """Return the packed file of the run's tokenizer (coordinator/rpc/tokenizer.py); None if there is none.

        Raises:
            Unreachable: there is no link.
            WaitTimedOut: the core does not answer.
        """
        packed: tuple[str, bytes] | None = await self._ask("tokenizer", tuple[str, bytes] | None)
        return packed

    async def _ask(self, what: str, value_type: Any) -> Any:
        if self._link is None:
            raise Unreachable(_AWAY, fix="retry once the coordinator runs")
        question = self._questions.get(what)
        if question is None:
            question = self._questions[what] = asyncio.get_running_loop().create_future()
            question.add_done_callback(lambda done: self._answered(what, done))
            self._link.send(frames.Ask(what))
        async with deadline(ANSWER_DEADLINE_S, "an answer of the coordinator to its gateway"):
            item = await asyncio.shield(question)
        if item.error:
            raise _error_in(item.error)
        return frames.value_in(item, value_type)

    def _answered(self, what: str, question: asyncio.Future[frames.Answer]) -> None:
        del self._questions[what]
        if not question.cancelled():
            question.exception()  # who asked may have gone

    def fail(self, error: Exception) -> None:
        """See CoreLink."""
        if not self.failure.done():
            self.failure.set_result(error)


def _error_in(text: str) -> RollcastError:
    return error_from_json(text) or MalformedMessage("the core gives an error of another release as its reason")
