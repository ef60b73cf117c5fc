"""Serve the peers' calls: one long session per peer, and uploads of rollouts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import unquote

import grpc
import structlog

from coordinator.core.events.actions import AnswerUpload
from coordinator.core.events.events import (
    Event,
    HeartbeatReceived,
    IdentityNoticed,
    LeasesReturned,
    PartialReceived,
    PeerJoined,
    PeerLeft,
    VersionHeld,
    WorkRequested,
)
from coordinator.join import JoinDesk
from coordinator.ledger.store import RunStore
from coordinator.rpc.access import Messages, caller_of
from coordinator.rpc.accusations import accused_event
from coordinator.rpc.clones import INSTANCE_ID_LENGTH_MAX, Clones
from coordinator.rpc.heartbeats import facts_of
from coordinator.rpc.reach_messages import reach_event_of
from coordinator.rpc.sanitise import counter, rate, text
from coordinator.rpc.upload_limits import UploadLimits, UploadRates
from coordinator.shell.sessions import PeerChannel, Sessions
from coordinator.shell.shell import Shell
from rollcast.runtime.errors import ClonedIdentity, MalformedMessage, RateLimited, RollcastError, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire import limits
from rollcast.wire.identity.certificates import Caller
from rollcast.wire.ids import Epoch, LeaseId, PeerId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import agree_with, range_to_pb
from rollcast.wire.rollouts import AtVersionSwap, partial_from_pb, received_rollout, without_content
from rollcast.wire.routes import RouteShape

log = structlog.get_logger()

HELLO_DEADLINE_S = 10.0
WRITE_DEADLINE_S = 10.0  # for the transport to accept one message
UPLOAD_MESSAGE_DEADLINE_S = 120.0  # between two messages of one upload; the longest have some 13 MiB
REFUSAL_S = 1.0  # before an upload that comes too fast is refused
VERDICT_DEADLINE_S = 30.0
LEDGER_DEADLINE_S = 30.0
MESSAGES_PER_SECOND_MAX = 200  # of one session, on average over RATE_WINDOW_S; an honest peer sends a few
BYTES_PER_SECOND_MAX = 4 << 20  # of one session likewise: as much in partial results takes a core 0.1 s
RATE_WINDOW_S = 5.0  # the two limits hold per window, so that short bursts pass
LEASES_PER_RETURN_MAX = 4096
CONCURRENT_ROLLOUTS_MAX = 65536
REGION_LENGTH_MAX = 64
_SITE_PREFIX_LENGTHS = {4: 24, 6: 64}  # prefix of one local network by IP version
_CLONE_CAUSE = "its key, identity.key, was copied, and the other machine is connected to the run now"
_CLONE_FIX = "stop the other one to move here; or delete identity.key and credentials.pem here and join anew"


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
            )
        )


class PeerCalls:
    """Handles the methods Session and UploadRollouts."""

    def __init__(
        self,
        shell: Shell,
        sessions: Sessions,
        desk: JoinDesk,
        welcome: WelcomeSettings,
        ledger: RunStore,
        rates: UploadRates = UploadRates(),  # noqa: B008
    ) -> None:
        self._shell = shell
        self._sessions = sessions
        self._desk = desk
        self._welcome = welcome
        self._ledger = ledger
        self._route_shape: RouteShape | None = None
        self._clones = Clones()
        self.upload_limits = UploadLimits(rates)
        self.refused: Counter[str] = Counter()
        """Sessions refused so far, by reason."""

    async def Session(self, messages: Messages, context: Any) -> None:
        """Serve one peer's session from its Hello to its end; see rollcast.proto."""
        caller = caller_of(context)
        try:
            async with deadline(HELLO_DEADLINE_S, "the peer's Hello"):
                first = await anext(messages, None)
            if first is None:
                return
            invite = await self._desk.invite_of(caller.peer_id)
            joined = replace(joined_of(caller, first, site_of(context.peer()), host_of(context.peer())), invite=invite)
            instance_id = text(first.hello.instance_id, INSTANCE_ID_LENGTH_MAX)
            if not self._may_open(caller.peer_id, instance_id, context.peer()):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "another session of this identity is still open")
            # UNAVAILABLE makes the peer retry, for the coordinator that resumes the run.
            if self._shell.ended_because and not self._shell.ended_for_good:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"the run is interrupted: {self._shell.ended_because}")
            if self._shell.ended_because:
                # A peer that was away at the end learns of it like the connected ones did, and ends as they do.
                await _write(context, pb.CoordinatorMessage(stop=pb.Stop(reason=self._shell.ended_because)))
                return
        except RollcastError as error:
            self.refused[error.reason] += 1
            log.info("session refused", peer_id=caller.peer_id, code=error.code, what=error.what)
            refused = pb.Refused(code=error.code, what=_one_line(error), fix=error.fix)
            await _write(context, pb.CoordinatorMessage(refused=refused))
            return
        channel = self._sessions.open(caller.peer_id, caller.role, joined.address)
        self._clones.session_opened(caller.peer_id, instance_id, time.monotonic())
        log.info("session opened", peer_id=caller.peer_id, name=joined.name, peer_role=joined.role)
        channel.send(self._welcome.message())  # before the event, whose actions queue messages behind it
        self._shell.apply(joined)
        reader = asyncio.create_task(self._read(messages, caller, channel))
        try:
            while (message := await channel.next()) is not None:
                await _write(context, message)
        except TimeoutError:
            channel.end("it does not read its messages")
        finally:
            channel.end("the connection was closed")
            reader.cancel()
            if self._sessions.close(channel):  # not if a newer session of the peer has replaced this one
                self._clones.session_closed(caller.peer_id)
                self._shell.apply(PeerLeft(caller.peer_id, channel.ended_because, finished=channel.said_goodbye))
            log.info("session ended", peer_id=caller.peer_id, reason=channel.ended_because)

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

    async def _read(self, messages: Messages, caller: Caller, channel: PeerChannel) -> None:
        """Apply the peer's messages as events until the stream ends; its end ends the session."""
        budget = _Budget()
        try:
            async for message in messages:
                if channel.ended_because:
                    return
                budget.spend(messages.newest_bytes)
                self._clones.message_received(caller.peer_id, time.monotonic())
                if message.WhichOneof("body") == "goodbye":
                    channel.said_goodbye = True
                    channel.end(message.goodbye.reason[: limits.TEXT_LENGTH_MAX] or "it said goodbye")
                    return
                if message.WhichOneof("body") == "certificate_request":
                    await self._renew(caller, channel, message.certificate_request.csr_pem)
                elif message.WhichOneof("body") == "accusation":
                    self._shell.apply(
                        await accused_event(
                            caller.peer_id,
                            message.accusation,
                            run_id=RunId(self._welcome.run_id),
                            ledger=self._ledger,
                        )
                    )
                else:
                    self._shell.apply(event_of(caller.peer_id, message))
            channel.end("the peer closed the connection")
        except RollcastError as error:
            channel.end(_one_line(error))
        except asyncio.CancelledError:
            channel.end("the connection was lost")
            raise
        except Exception as error:
            channel.end("the coordinator failed")
            self._shell.fail(error)

    async def _renew(self, caller: Caller, channel: PeerChannel, csr_pem: bytes) -> None:
        pem = await self._desk.renew(csr_pem, peer_id=caller.peer_id, role=caller.role)
        channel.send(pb.CoordinatorMessage(certificate=pb.Certificate(certificate_pem=pem)))

    async def UploadRollouts(self, uploads: Messages, context: Any) -> pb.UploadReply:
        """Receive rollouts; each verdict follows once the rollout is durable, or gives the reason for its refusal."""
        peer_id = caller_of(context).peer_id
        keys = (f"invite {await self._desk.invite_of(peer_id)}", f"address {host_of(context.peer())}")
        try:
            wait_s = self.upload_limits.begin(peer_id, keys, time.monotonic())
        except RateLimited:
            await asyncio.sleep(REFUSAL_S)  # refusing at once would invite the next call at once
            raise
        try:
            await asyncio.sleep(wait_s)
            return await self._receive_upload(peer_id, keys, uploads)
        finally:
            self.upload_limits.end(peer_id)

    async def _receive_upload(self, peer_id: PeerId, keys: tuple[str, str], uploads: Messages) -> pb.UploadReply:
        routes = await self._routes()
        answers: list[asyncio.Future[AnswerUpload]] = []
        while True:
            async with deadline(UPLOAD_MESSAGE_DEADLINE_S, "the rest of an upload"):
                upload = await anext(uploads, None)
            if upload is None:
                break
            if len(answers) + len(upload.rollouts) > limits.ROLLOUTS_PER_UPLOAD_MAX:
                raise MalformedMessage(f"an upload has at most {limits.ROLLOUTS_PER_UPLOAD_MAX} rollouts")
            wait_s = self.upload_limits.read(peer_id, keys, uploads.newest_bytes, time.monotonic())
            answers += [self._receive_rollout(peer_id, rollout, routes) for rollout in upload.rollouts]
            del upload  # not kept while the call waits
            await asyncio.sleep(min(wait_s, UPLOAD_MESSAGE_DEADLINE_S))  # what is not read is not sent
        async with deadline(VERDICT_DEADLINE_S, "the ledger to store an upload"):
            verdicts = [_verdict(await answer) for answer in answers]
        return pb.UploadReply(verdicts=verdicts)

    async def _routes(self) -> RouteShape | None:
        """Return the shape of the routes that uploads may have; None if they must have none.

        Versions describe the model, which stays the same for the whole run.
        """
        if self._welcome.router_replay and self._route_shape is None:
            async with deadline(LEDGER_DEADLINE_S, "the ledger to find the newest version"):
                newest = await self._ledger.newest_version()
            if newest is not None:
                announcement = pb.VersionAnnouncement.FromString(newest.announcement)
                record = pb.VersionRecord.FromString(announcement.record.payload)
                self._route_shape = RouteShape.described(record.model_json)
        return self._route_shape

    def _receive_rollout(
        self, peer_id: PeerId, message: pb.Rollout, routes: RouteShape | None
    ) -> asyncio.Future[AnswerUpload]:
        try:
            if self._shell.expects(peer_id, message):
                rollout = received_rollout(message, routes)
            else:  # whatever it contains, its lease and token decide its answer
                rollout = without_content(message)
        except MalformedMessage as error:
            log.info("malformed rollout", peer_id=peer_id, what=error.what)
            return self._shell.upload_malformed(peer_id, message, error.what)
        return self._shell.upload(peer_id, rollout)


class _Budget:
    """Limits the messages and bytes that a session may send on average."""

    def __init__(self) -> None:
        self._window_start = time.monotonic()
        self._count = self._bytes = 0

    def spend(self, size_bytes: int) -> None:
        """Count one message of ``size_bytes``.

        Raises:
            MalformedMessage: the peer sent too much in this window.
        """
        now = time.monotonic()
        if now - self._window_start >= RATE_WINDOW_S:
            self._window_start, self._count, self._bytes = now, 0, 0
        self._count += 1
        self._bytes += size_bytes
        if self._count > MESSAGES_PER_SECOND_MAX * RATE_WINDOW_S or self._bytes > BYTES_PER_SECOND_MAX * RATE_WINDOW_S:
            raise MalformedMessage("the peer sends too many messages")


def event_of(peer_id: PeerId, message: pb.PeerMessage) -> Event:
    """Convert a message of an open session to an event for the core.

    Raises:
        MalformedMessage: the message is empty, a second Hello, or has a value out of bounds.
    """
    match message.WhichOneof("body"):
        case "heartbeat":
            return HeartbeatReceived(peer_id, facts_of(message.heartbeat))
        case "work_request":
            return WorkRequested(peer_id, min(message.work_request.free_slots, CONCURRENT_ROLLOUTS_MAX))
        case "version_held":
            held = message.version_held
            epoch, version = Epoch(counter(held.epoch)), Version(counter(held.version))
            return VersionHeld(peer_id, epoch, version, counter(held.bytes_received))
        case "lease_return":
            returned = message.lease_return
            if len(returned.lease_ids) > LEASES_PER_RETURN_MAX:
                raise MalformedMessage("too many leases in one return")
            lease_ids = tuple(LeaseId(counter(lease_id)) for lease_id in returned.lease_ids)
            return LeasesReturned(peer_id, lease_ids, text(returned.reason))
        case "partial_rollout":
            return PartialReceived(peer_id, partial_from_pb(message.partial_rollout))
        case kind:
            if (event := reach_event_of(peer_id, message)) is not None:
                return event
            raise MalformedMessage(f"a message {kind!r} is not allowed in an open session")


def joined_of(caller: Caller, message: pb.PeerMessage, site: str, host: str = "") -> PeerJoined:
    """Convert the first message of a session to an event.

    ``site`` is the peer's local network (see site_of), ``host`` its IP address; empty if unknown.

    Raises:
        ProtocolMismatch, WrongKey, MalformedMessage: the session is refused.
    """
    if message.WhichOneof("body") != "hello":
        raise MalformedMessage("the first message of a session must be Hello")
    hello = message.hello
    agree_with(hello.protocol)
    if hello.role != caller.role:
        raise WrongKey(
            f"the certificate is for the role {caller.role}, not {text(hello.role)}", fix="use an invite for that role"
        )
    if hello.concurrent_rollouts > CONCURRENT_ROLLOUTS_MAX:
        raise MalformedMessage("a number in Hello is out of range")
    if len(hello.held_leases) > limits.HELD_LEASES_MAX:
        raise MalformedMessage("too many leases in Hello")
    held_leases = tuple(LeaseId(counter(one)) for one in hello.held_leases) if hello.has_held_leases else None
    return PeerJoined(
        peer_id=caller.peer_id,
        role=hello.role,
        name=text(hello.name),
        address=text(hello.advertise),
        concurrent_rollouts=hello.concurrent_rollouts,
        hardware=text(hello.hardware),
        region=text(hello.region, REGION_LENGTH_MAX),
        site=site,
        metered=hello.metered,
        upload_cap_bytes_per_second=rate(hello.upload_cap_bytes_per_second),
        held_leases=held_leases,
        software=text(hello.software),
        public_name=text(hello.public_name),
        host=host,
        sampler=text(hello.sampler),
    )


def site_of(grpc_peer: str) -> str:
    """Return the local network of a gRPC peer such as ``ipv4:192.0.2.7:4242``; empty if it is unknown.

    Peers behind one public IPv4 address share a site. A private address means that the coordinator is in the same
    network; of those and of IPv6 addresses the network prefix is the site. Loopback addresses have no site.
    """
    address = _address_of(grpc_peer)
    if address is None or address.is_loopback or address.is_unspecified:
        return ""
    if address.version == 4 and not address.is_private:
        return str(address)
    network: IPv4Network | IPv6Network = ip_network((address, _SITE_PREFIX_LENGTHS[address.version]), strict=False)
    return str(network)


def host_of(grpc_peer: str) -> str:
    """Return the IP address of a gRPC peer; empty if it is unknown."""
    address = _address_of(grpc_peer)
    return "" if address is None else str(address)


def _address_of(grpc_peer: str) -> IPv4Address | IPv6Address | None:
    scheme, _, rest = unquote(grpc_peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return None
    try:
        address = ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _verdict(answer: AnswerUpload) -> pb.RolloutVerdict:
    return pb.RolloutVerdict(
        lease_id=answer.lease_id, sample_index=answer.sample_index, accepted=answer.accepted, reason=answer.reason
    )


def _one_line(error: RollcastError) -> str:
    return f"{error.what}: {error.cause}" if error.cause else error.what


async def _write(context: Any, message: pb.CoordinatorMessage) -> None:
    async with asyncio.timeout(WRITE_DEADLINE_S):
        await context.write(message)
