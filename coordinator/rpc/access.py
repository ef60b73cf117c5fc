"""Decide which role may call which method of the control port, before anything that the caller sends is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Container
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from coordinator.rpc.connection_guard import Busy, remote_of
from rollcast.runtime.errors import MalformedMessage, RateLimited, RollcastError, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.certificates import Caller, caller_from_san_uris
from rollcast.wire.ids import Role
from rollcast.wire.joining.grpc_client import error_to_json, status_of
from rollcast.wire.limits import GRPC_MESSAGE_BYTES_MAX, PEER_MESSAGE_BYTES_MAX

log = structlog.get_logger()

MEMBERS: frozenset[Role] = frozenset({"peer", "origin"})
LEARNER: frozenset[Role] = frozenset({"learner"})
ROLES_BY_METHOD: dict[str, frozenset[Role]] = {
    "Session": MEMBERS,
    "UploadRollouts": frozenset({"peer"}),
    "TokenizerFile": frozenset({"peer"}),
    "OpenLearner": LEARNER,
    "Examples": LEARNER,
    "HeldOut": LEARNER,
    "ScoreCompletions": LEARNER,
    "Evaluate": LEARNER,
    "NextBatch": LEARNER,
    "Announce": LEARNER,
    "OpenEpoch": LEARNER,
    "ReportStep": LEARNER,
    "ReportStatus": LEARNER,
    "Cell": LEARNER,
}
#: The methods that gateways serve as well.
PEER_METHODS = frozenset({"Session", "UploadRollouts", "TokenizerFile"})
#: Limits in bytes where less than the gRPC limit is enough.
REQUEST_BYTES_MAX = {"Session": PEER_MESSAGE_BYTES_MAX}
MESSAGE_DEADLINE_S = 120.0  # for the message of a call that has only one; the longest have 16 MiB
_SITE_PREFIX_LENGTHS = {4: 24, 6: 64}  # prefix of one local network by IP version
Behaviour = Callable[[Any, Any], Awaitable[Any]]
Deserialize = Callable[[bytes], Any]


def caller_of(context: Any) -> Caller:
    """Return the caller that the certificate verified by TLS names.

    Raises:
        WrongKey: the certificate does not name exactly one caller.
    """
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return caller_from_san_uris(name.decode("utf-8", "replace") for name in names)


def site_of(grpc_peer: str) -> str:
    """Return the local network of a gRPC peer such as ``ipv4:192.0.2.7:4242``; empty if it is unknown.

    Peers behind one public IPv4 address share a site. A private address means that the coordinator is in the same
    network; of those and of IPv6 addresses the network prefix is the site. Loopback addresses have no site.
    """
    remote = remote_of(grpc_peer)
    if remote is None:
        return ""
    address = ip_address(remote[0])
    if address.is_loopback or address.is_unspecified:
        return ""
    if address.version == 4 and not address.is_private:
        return str(address)
    network: IPv4Network | IPv6Network = ip_network((address, _SITE_PREFIX_LENGTHS[address.version]), strict=False)
    return str(network)


def host_of(grpc_peer: str) -> str:
    """Return the IP address of a gRPC peer; empty if it is unknown."""
    remote = remote_of(grpc_peer)
    return "" if remote is None else remote[0]


class RoleGate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses certificates of other runs, and roles that a method is not for."""

    def __init__(
        self,
        run_id: str,
        *,
        learner_called: Callable[[], None] = lambda: None,
        methods: Container[str] = ROLES_BY_METHOD,
    ) -> None:
        """
        Args:
            learner_called: called at the beginning and at the end of each of the learner's calls.
            methods: those that are served here.
        """
        self._run_id = run_id
        self._learner_called = learner_called
        self._methods = methods
        self._handlers: dict[str, Any] = {}  # those that were asked for, by the method's full name
        self.busy = Busy()
        """The connections of calls that passed and are in progress."""
        self.refused: Counter[str] = Counter()
        """Calls refused so far, by reason."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Return the method's handler behind this gate, served as if its callers streamed.

        A call looks the same on the wire whether one message follows or many. But gRPC reads a lone message, of up to
        GRPC_MESSAGE_BYTES_MAX, before it asks any handler, and a stream only as the handler reads it.
        """
        made = self._handlers.get(details.method)
        if made is not None:
            return made
        handler = await continuation(details)
        method = details.method.rpartition("/")[2]
        if handler is None or method not in self._methods:
            return None
        parts = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        behaviour = next(one for one in parts if one is not None)
        if not handler.request_streaming:
            behaviour = _with_one_message(behaviour)
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        made = self._handlers[details.method] = make(
            self._guarded(method, behaviour, handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )
        return made

    def check(self, method: str, caller: Caller) -> None:
        """Check that a caller may call a method.

        Raises:
            WrongKey: the caller's run or role does not allow the method.
        """
        if caller.run_id != self._run_id:
            raise WrongKey(f"this certificate is for the run {caller.run_id}", fix="join this run with its own invite")
        if caller.role not in ROLES_BY_METHOD[method]:
            raise WrongKey(f"a {caller.role} may not call {method}", fix="join with an invite for the right role")

    def _guarded(self, method: str, behaviour: Behaviour, parse: Deserialize) -> Behaviour:
        async def guarded(_unread: Any, context: Any) -> Any:
            called, passed = _ignore, False
            try:
                caller = caller_of(context)
                self.check(method, caller)
                self.busy.began(context.peer())
                passed = True
                called = self._learner_called if caller.role == "learner" else _ignore
                called()
                messages = Messages(context, parse, REQUEST_BYTES_MAX.get(method, GRPC_MESSAGE_BYTES_MAX))
                return await behaviour(messages, context)
            except RollcastError as error:
                self.refused[error.reason] += 1
                note = log.debug if isinstance(error, RateLimited) else log.info  # a flood must not fill the log
                note("call refused", method=method, code=error.code, what=error.what, cause=error.cause)
                await context.abort(status_of(error), error_to_json(error))
            finally:
                called()
                if passed:
                    self.busy.ended(context.peer())
            return None

        return guarded


class Messages:
    """The messages of one call, each read, measured and parsed when it is asked for, and never kept.

    gRPC's own iterator of requests holds the newest message until the next one is asked for. While a call waits, for
    the ledger or for its allowance, that is all the memory that an upload takes.
    """

    def __init__(self, context: Any, parse: Deserialize, bytes_max: int) -> None:
        self._context, self._parse, self._bytes_max = context, parse, bytes_max
        self.newest_bytes = 0
        """Size of the newest message, as it was sent."""

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Any:
        """Return the next message.

        Raises:
            MalformedMessage: it is too long or does not parse.
        """
        data = await self._context.read()
        if data is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
            raise StopAsyncIteration
        self.newest_bytes = len(data)
        if self.newest_bytes > self._bytes_max:
            raise MalformedMessage(f"this call accepts messages of at most {self._bytes_max} bytes")
        try:
            return self._parse(data)
        except DecodeError:
            raise MalformedMessage("the message cannot be parsed") from None


def _with_one_message(behaviour: Behaviour) -> Behaviour:
    """Give a handler of one message that message."""

    async def handle(messages: Messages, context: Any) -> Any:
        async with deadline(MESSAGE_DEADLINE_S, "the message of a call"):
            message = await anext(messages, None)
        if message is None:
            raise MalformedMessage("the call ended without a message")
        return await behaviour(message, context)

    return handle


def _ignore() -> None:
    """Ignore a call of a role other than the learner."""
