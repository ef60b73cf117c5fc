"""Serve the peers' calls: one long session per peer, and uploads of rollouts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import grpc
import structlog

from coordinator.core.events.events import (
    Event,
    HeartbeatReceived,
    LeasesReturned,
    PartialReceived,
    PeerJoined,
    VersionHeld,
    WorkRequested,
)
from coordinator.rpc.access import Messages, caller_of, host_of, site_of
from coordinator.rpc.clones import INSTANCE_ID_LENGTH_MAX
from coordinator.rpc.core_link import CoreLink, NotNow, Opening
from coordinator.rpc.heartbeats import CONCURRENT_ROLLOUTS_MAX, facts_of
from coordinator.rpc.reach_messages import reach_event_of
from coordinator.rpc.sanitise import counter, rate, text
from coordinator.rpc.upload_limits import UploadRates
from coordinator.rpc.uploads import UploadCalls
from coordinator.shell.sessions import PeerChannel
from rollcast.runtime.errors import MalformedMessage, RollcastError, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire import limits
from rollcast.wire.identity.certificates import Caller
from rollcast.wire.ids import Epoch, LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import agree_with
from rollcast.wire.rollout_messages import partial_from_pb

log = structlog.get_logger()

HELLO_DEADLINE_S = 10.0
WRITE_DEADLINE_S = 10.0  # for the transport to accept one message
MESSAGES_PER_SECOND_MAX = 200  # of one session, on average over RATE_WINDOW_S; an honest peer sends a few
BYTES_PER_SECOND_MAX = 4 << 20  # of one session likewise: as much in partial results takes a core 0.1 s
RATE_WINDOW_S = 5.0  # the two limits hold per window, so that short bursts pass
LEASES_PER_RETURN_MAX = 4096
REGION_LENGTH_MAX = 64


class PeerCalls:
    """Handles the method Session, and with ``uploads`` the one that uploads rollouts."""

    def __init__(self, core: CoreLink, rates: UploadRates = UploadRates()) -> None:  # noqa: B008
        self._core = core
        self.uploads = UploadCalls(core, rates)
        self.refused: Counter[str] = Counter()
        """Sessions refused so far, by reason."""

    async def Session(self, messages: Messages, context: Any) -> None:
        """Serve one peer's session from its Hello to its end; see rollcast.proto."""
        caller = caller_of(context)
        channel = PeerChannel(caller.peer_id, caller.role)
        try:
            async with deadline(HELLO_DEADLINE_S, "the peer's Hello"):
                first = await anext(messages, None)
            if first is None:
                return
            joined = joined_of(caller, first, site_of(context.peer()), host_of(context.peer()))
            channel.address = joined.address
            instance_id = text(first.hello.instance_id, INSTANCE_ID_LENGTH_MAX)
            await self._core.open(Opening(joined, instance_id, context.peer()), channel)
        except NotNow as reason:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(reason))  # which makes the peer retry
        except RollcastError as error:
            self.refused[error.reason] += 1
            log.info("session refused", peer_id=caller.peer_id, code=error.code, what=error.what)
            refused = pb.Refused(code=error.code, what=_one_line(error), fix=error.fix)
            await _write(context, pb.CoordinatorMessage(refused=refused))
            return
        reader = asyncio.create_task(self._read(messages, caller, channel))
        try:
            while (message := await channel.next()) is not None:
                await _write(context, message)
        except TimeoutError:
            channel.end("it does not read its messages")
        finally:
            channel.end("the connection was closed")
            reader.cancel()
            self._core.close(channel)

    async def _read(self, messages: Messages, caller: Caller, channel: PeerChannel) -> None:
        """Pass the peer's messages on until the stream ends; its end ends the session."""
        budget = _Budget()
        try:
            async for message in messages:
                if channel.ended_because:
                    return
                budget.spend(messages.newest_bytes)
                match message.WhichOneof("body"):
                    case "goodbye":
                        channel.said_goodbye = True
                        channel.end(message.goodbye.reason[: limits.TEXT_LENGTH_MAX] or "it said goodbye")
                        return
                    case "certificate_request":
                        await self._core.renew(channel, message.certificate_request.csr_pem)
                    case "accusation":
                        await self._core.accused(caller.peer_id, message.accusation)
                    case kind:
                        self._core.apply(caller.peer_id, event_of(caller.peer_id, message))
                        if kind == "heartbeat" and (sequence := message.heartbeat.sequence):
                            answer = pb.HeartbeatAnswer(sequence=sequence)
                            channel.send(pb.CoordinatorMessage(heartbeat_answer=answer))
                del message  # else each of thousands of sessions keeps its newest heartbeat, some 2.7 KB
            channel.end("the peer closed the connection")
        except RollcastError as error:
            channel.end(_one_line(error))
        except asyncio.CancelledError:
            channel.end("the connection was lost")
            raise
        except Exception as error:
            channel.end("the coordinator failed")
            self._core.fail(error)


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
            return HeartbeatReceived(peer_id, facts_of(message.heartbeat), message.heartbeat.links_left_out)
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
        is_cell=hello.cell,
    )


def _one_line(error: RollcastError) -> str:
    return f"{error.what}: {error.cause}" if error.cause else error.what


async def _write(context: Any, message: pb.CoordinatorMessage) -> None:
    async with asyncio.timeout(WRITE_DEADLINE_S):
        await context.write(message)
