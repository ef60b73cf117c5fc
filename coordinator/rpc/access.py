"""Decide which role may call which method of the control port, before any handler runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from coordinator.rpc.connection_guard import Busy
from rollcast.runtime.errors import MalformedMessage, RateLimited, RollcastError, WrongKey
from rollcast.wire.identity.certificates import Caller, caller_from_san_uris
from rollcast.wire.ids import Role
from rollcast.wire.joining.grpc_client import error_to_json, status_of
from rollcast.wire.limits import PEER_MESSAGE_BYTES_MAX

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
}
#: Limits in bytes where less than the gRPC limit is enough.
REQUEST_BYTES_MAX = {"Session": PEER_MESSAGE_BYTES_MAX}
Behaviour = Callable[[Any, Any], Awaitable[Any]]
Deserialize = Callable[[bytes], Any]


def caller_of(context: Any) -> Caller:
    """Return the caller that the certificate verified by TLS names.

    Raises:
        WrongKey: the certificate does not name exactly one caller.
    """
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return caller_from_san_uris(name.decode("utf-8", "replace") for name in names)


class RoleGate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses certificates of other runs, and roles that a method is not for."""

    def __init__(self, run_id: str, *, learner_called: Callable[[], None]) -> None:
        """``learner_called`` is called at the beginning and at the end of each of the learner's calls."""
        self._run_id = run_id
        self._learner_called = learner_called
        self.busy = Busy()
        """The connections of calls that passed and are in progress."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        method = details.method.rpartition("/")[2]
        if handler is None or method not in ROLES_BY_METHOD:
            return None
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            behaviour = getattr(handler, kind)
            if behaviour is not None:
                make = getattr(grpc, f"{kind}_rpc_method_handler")
                deserialize = _checked(handler.request_deserializer, REQUEST_BYTES_MAX.get(method))
                return make(self._guarded(method, behaviour), deserialize, handler.response_serializer)
        return None

    def check(self, method: str, caller: Caller) -> None:
        """Check that a caller may call a method.

        Raises:
            WrongKey: the caller's run or role does not allow the method.
        """
        if caller.run_id != self._run_id:
            raise WrongKey(f"this certificate is for the run {caller.run_id}", fix="join this run with its own invite")
        if caller.role not in ROLES_BY_METHOD[method]:
            raise WrongKey(f"a {caller.role} may not call {method}", fix="join with an invite for the right role")

    def _guarded(self, method: str, behaviour: Behaviour) -> Behaviour:
        async def guarded(request: Any, context: Any) -> Any:
            called, passed = _ignore, False
            try:
                caller = caller_of(context)
                self.check(method, caller)
                self.busy.began(context.peer())
                passed = True
                called = self._learner_called if caller.role == "learner" else _ignore
                called()
                return await behaviour(request, context)
            except RollcastError as error:
                note = log.debug if isinstance(error, RateLimited) else log.info  # a flood must not fill the log
                note("call refused", method=method, code=error.code, what=error.what, cause=error.cause)
                await context.abort(status_of(error), error_to_json(error))
            finally:
                called()
                if passed:
                    self.busy.ended(context.peer())
            return None

        return guarded


def _checked(deserialize: Deserialize, bytes_max: int | None) -> Deserialize:
    """Refuse data that is too long before parsing it, and report data that does not parse as the caller's error."""

    def checked(data: bytes) -> Any:
        if bytes_max is not None and len(data) > bytes_max:
            raise MalformedMessage(f"this call accepts messages of at most {bytes_max} bytes")
        try:
            return deserialize(data)
        except DecodeError:
            raise MalformedMessage("the message cannot be parsed") from None

    return checked


def _ignore() -> None:
    """Ignore a call of a role other than the learner."""
