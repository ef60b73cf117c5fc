"""Declare what the calls of peers need of the run's core, and provide it where both are one process."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from blake3 import blake3

from coordinator.core.events.events import Event, IdentityNoticed, PeerJoined, PeerLeft
from coordinator.rpc.accusations import accused_event
from coordinator.rpc.clones import Clones
from coordinator.shell.pending_calls import Answered
from coordinator.shell.sessions import Channel, PeerChannel, Sessions
from rollcast.runtime.errors import ClonedIdentity, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.rollouts import Rollout
from rollcast.wire.routes import RouteShape
from rollcast.wire.version_swap import AtVersionSwap

if TYPE_CHECKING:  # a gateway has none of these
    from coordinator.join import JoinDesk
    from coordinator.ledger.store import RunStore
    from coordinator.shell.shell import Shell

LEDGER_DEADLINE_S = 30.0
REDIALS_PER_SECOND = 250.0
"""Sessions that begin in a second after all members lost theirs at once, as in a restart: less than a core opens."""
_CLONE_CAUSE = "its key, identity.key, was copied, and the other machine is connected to the run now"
_CLONE_FIX = "stop the other one to move here; or delete identity.key and credentials.pem here and join anew"


@dataclass(frozen=True, slots=True)
class Opening:
    """A peer's request for a session, whose form was checked."""

    joined: PeerJoined  # without the invite, which the core looks up; a gateway repeats what the core told it
    instance_id: str  # of the place that uses the identity (coordinator/rpc/clones.py); empty: not named
    address: str  # of its connection, for people
    resumed: bool = False  # a gateway kept it open while it had no core


class NotNow(Exception):
    """A session cannot be opened now; the peer retries."""


class CoreLink(Protocol):
    """What the calls of peers ask and tell the core."""

    async def open(self, opening: Opening, channel: PeerChannel) -> str:
        """Open a session, whose messages go into ``channel``, the Welcome first; return the id of the peer's invite.

        At the end of the run the channel gets a Stop instead.

        Raises:
            NotNow: the peer must retry.
            RollcastError: the peer is refused, or the ledger does not answer.
        """

    def close(self, channel: PeerChannel) -> None:
        """End a session that ``open`` opened; ``channel`` knows why it ended."""

    def apply(self, peer_id: PeerId, event: Event) -> None:
        """Pass on an event that a message of the peer's open session caused."""

    async def accused(self, accuser: PeerId, message: pb.Accusation) -> None:
        """Pass on a peer's report about another one.

        Raises:
            MalformedMessage: a value is out of bounds.
            StoreError, WaitTimedOut: the ledger cannot read the version.
        """

    async def renew(self, channel: PeerChannel, csr_pem: bytes) -> None:
        """Issue a new certificate for the peer of an open session; it comes as a message of ``channel``.

        Raises:
            MalformedMessage, Banned: none is issued.
        """

    async def invite_of(self, peer_id: PeerId) -> str:
        """Return the id of the invite with which an identity joined; empty if it is not known.

        Raises:
            StoreError, WaitTimedOut: the ledger cannot look it up.
        """

    async def route_shape(self) -> RouteShape | None:
        """Return the shape of the routes that uploads may have; None if they must have none.

        Raises:
            StoreError, WaitTimedOut: the ledger cannot read the newest version.
        """

    def expects(self, peer_id: PeerId, message: pb.Rollout) -> bool:
        """Return whether the content of a rollout has to be read, as its sender may hold the attempt."""

    def upload(self, peer_id: PeerId, rollout: Rollout, answered: Answered) -> None:
        """Pass on a rollout; the answer comes once the rollout is durable or refused."""

    def upload_malformed(self, peer_id: PeerId, message: pb.Rollout, problem: str, answered: Answered) -> None:
        """Pass on an upload that is not a rollout; see Shell."""

    def fail(self, error: Exception) -> None:
        """End the process because of a defect."""


@dataclass(frozen=True, slots=True)
class WelcomeSettings:
    """The contents of the Welcome that every peer receives."""

    run_id: str
    learner_public_key: bytes
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    prompt_tokens_max: int
    sampling: pb.Sampling
    prefetch_batches: float
    at_version_swap: AtVersionSwap
    partial_interval_s: float
    software: str
    tokenizer_json: str = ""
    router_replay: bool = False
    answer_s: float = 0.0
    """Seconds after which a peer may look for another coordinator or gateway because a heartbeat has no answer."""

    def message(self) -> pb.CoordinatorMessage:
        return pb.CoordinatorMessage(
            welcome=pb.Welcome(
                protocol=range_to_pb(),
                run_id=self.run_id,
                learner_public_key=self.learner_public_key,
                heartbeat_interval_s=self.heartbeat_interval_s,
                heartbeat_timeout_s=self.heartbeat_timeout_s,
                software=self.software,
                prompt_tokens_max=self.prompt_tokens_max,
                sampling=self.sampling,
                prefetch_batches=self.prefetch_batches,
                at_version_swap=self.at_version_swap,
                partial_interval_s=self.partial_interval_s,
                tokenizer_json=self.tokenizer_json,
                router_replay=self.router_replay,
                answer_s=self.answer_s,
            )
        )


class LocalCore:
    """A CoreLink to the core of this process."""

    def __init__(
        self, shell: Shell, sessions: Sessions, desk: JoinDesk, welcome: WelcomeSettings, ledger: RunStore
    ) -> None:
        self._shell = shell
        self._sessions = sessions
        self._desk = desk
        self._welcome = welcome
        self._ledger = ledger
        self._route_shape: RouteShape | None = None
        self._clones = Clones()

    @cached_property
    def _welcome_message(self) -> pb.CoordinatorMessage:
        return self._welcome.message()

    def _welcome_now(self) -> pb.CoordinatorMessage:
        """Return the welcome of a peer that joins now: the more members there are, the later each may dial again."""
        message = pb.CoordinatorMessage()
        message.CopyFrom(self._welcome_message)
        message.welcome.redial_spread_s = self._sessions.count / REDIALS_PER_SECOND
        return message

    @property
    def welcome_digest(self) -> bytes:
        """Return BLAKE3 of the Welcome, 32 bytes: a coordinator with other settings has another one."""
        return blake3(self._welcome_message.SerializeToString(deterministic=True)).digest()

    @property
    def is_interrupted(self) -> bool:
        """Whether this coordinator ends and another one continues the run."""
        return bool(self._shell.ended_because) and not self._shell.ended_for_good

    async def open(self, opening: Opening, channel: Channel) -> str:
        """See CoreLink."""
        joined, peer_id = opening.joined, opening.joined.peer_id
        if not joined.invite:
            joined = replace(joined, invite=await self._desk.invite_of(peer_id))
        if joined.is_cell and not await self._desk.is_for_cells(joined.invite):
            raise WrongKey("this invite is not for cells", fix="join with one that `rollcast invite --role cell` makes")
        if (ended := self._sessions.ended(peer_id)) is not None:  # the turn to close it has not come
            self.close(ended)
        if not self._may_open(peer_id, opening.instance_id, opening.address):
            raise NotNow("another session of this identity is still open")
        if opening.resumed and self._sessions.has(peer_id):  # it is younger: the peer has not waited for its gateway
            raise NotNow("another session of the same peer replaced it")
        shell = self._shell
        if self.is_interrupted:  # the peer retries, for the one that resumes the run
            raise NotNow(f"the run is interrupted: {shell.ended_because}")
        if shell.ended_because:
            # A peer that was away at the end learns of it like the connected ones did, and ends as they do.
            channel.send(pb.CoordinatorMessage(stop=pb.Stop(reason=shell.ended_because)))
            channel.end(shell.ended_because)
            return joined.invite
        self._sessions.add(channel)
        self._clones.session_opened(peer_id, opening.instance_id, time.monotonic())
        if opening.resumed:  # one of thousands, about which the core decides together
            shell.apply_soon(joined)
        else:
            channel.send(self._welcome_now())  # before the event, whose actions queue messages behind it
            shell.apply(joined)
        return joined.invite

    def _may_open(self, peer_id: PeerId, instance_id: str, address: str) -> bool:
        """Decide whether this instance of an identity may open a session; False means that the peer must retry.

        Raises:
            ClonedIdentity: another instance uses the identity.
        """
        verdict = self._clones.verdict(peer_id, instance_id, time.monotonic())
        if verdict == "moved":
            self._shell.apply(IdentityNoticed(peer_id, "identity_moved", f"now at {address}"))
        if verdict == "cloned":
            self._shell.apply(IdentityNoticed(peer_id, "identity_cloned", f"a second one at {address} was refused"))
            raise ClonedIdentity("another machine uses the identity of this one", cause=_CLONE_CAUSE, fix=_CLONE_FIX)
        return verdict != "later"

    def close(self, channel: Channel) -> None:
        """See CoreLink."""
        if self._sessions.close(channel):  # not if a newer session of the peer has replaced this one
            self._clones.session_closed(channel.peer_id)
            self._shell.apply(PeerLeft(channel.peer_id, channel.ended_because, finished=channel.said_goodbye))

    def apply(self, peer_id: PeerId, event: Event) -> None:
        """See CoreLink."""
        self._clones.message_received(peer_id, time.monotonic())
        self._shell.apply_soon(event)

    async def accused(self, accuser: PeerId, message: pb.Accusation) -> None:
        """See CoreLink."""
        self._clones.message_received(accuser, time.monotonic())
        run_id = RunId(self._welcome.run_id)
        self._shell.apply(await accused_event(accuser, message, run_id=run_id, ledger=self._ledger))

    async def renew(self, channel: Channel, csr_pem: bytes) -> None:
        """See CoreLink."""
        self._clones.message_received(channel.peer_id, time.monotonic())
        pem = await self._desk.renew(csr_pem, peer_id=channel.peer_id, role=channel.role)
        channel.send(pb.CoordinatorMessage(certificate=pb.Certificate(certificate_pem=pem)))

    async def invite_of(self, peer_id: PeerId) -> str:
        """See CoreLink."""
        return await self._desk.invite_of(peer_id)

    async def route_shape(self) -> RouteShape | None:
        """See CoreLink. Versions describe the model, which stays the same for the whole run."""
        if self._welcome.router_replay and self._route_shape is None:
            async with deadline(LEDGER_DEADLINE_S, "the ledger to find the newest version"):
                newest = await self._ledger.newest_version()
            if newest is not None:
                announcement = pb.VersionAnnouncement.FromString(newest.announcement)
                record = pb.VersionRecord.FromString(announcement.record.payload)
                self._route_shape = RouteShape.described(record.model_json)
        return self._route_shape

    def expects(self, peer_id: PeerId, message: pb.Rollout) -> bool:
        """See CoreLink."""
        return self._shell.expects(peer_id, message)

    def upload(self, peer_id: PeerId, rollout: Rollout, answered: Answered) -> None:
        """See CoreLink."""
        self._shell.upload(peer_id, rollout, answered)

    def upload_malformed(self, peer_id: PeerId, message: pb.Rollout, problem: str, answered: Answered) -> None:
        """See CoreLink."""
        self._shell.upload_malformed(peer_id, message, problem, answered)

    def fail(self, error: Exception) -> None:
        """See CoreLink."""
        self._shell.fail(error)
