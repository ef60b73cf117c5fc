"""Who may call what on the control port: the caller's certificate is checked before any handler runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from rollcast.runtime.errors import MalformedMessage, RollcastError, WrongKey
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
    "NextBatch": LEARNER,
    "Announce": LEARNER,
    "OpenEpoch": LEARNER,
    "ReportStep": LEARNER,
    "ReportStatus": LEARNER,
}
#: Where less than a gRPC message is enough, in bytes.
REQUEST_BYTES_MAX = {"Session": PEER_MESSAGE_BYTES_MAX}
Behaviour = Callable[[Any, Any], Awaitable[Any]]
Deserialize = Callable[[bytes], Any]


def caller_of(context: Any) -> Caller:
    """Who is at the other end, from the certificate that TLS has verified.

    Raises:
        WrongKey: the certificate does not name one caller.
    """
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return caller_from_san_uris(name.decode("utf-8", "replace") for name in names)


class RoleGate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses certificates of other runs, and roles that a method is not for."""

    def __init__(self, run_id: str, *, learner_called: Callable[[], None]) -> None:
        """``learner_called`` hears of the beginning and the end of each of the learner's calls."""
        self._run_id = run_id
        self._learner_called = learner_called

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
        """Whether this caller may call this method.

        Raises:
            WrongKey: it may not.
        """
        if caller.run_id != self._run_id:
            raise WrongKey(f"this certificate is of the run {caller.run_id}", fix="join this run with an invite of it")
        if caller.role not in ROLES_BY_METHOD[method]:
            raise WrongKey(f"a {caller.role} may not call {method}", fix="join with an invite for the right role")

    def _guarded(self, method: str, behaviour: Behaviour) -> Behaviour:
        async def guarded(request: Any, context: Any) -> Any:
            called = _nobody
            try:
                caller = caller_of(context)
                self.check(method, caller)
                called = self._learner_called if caller.role == "learner" else _nobody
                called()
                return await behaviour(request, context)
            except RollcastError as error:
                log.info("call refused", method=method, code=error.code, what=error.what, cause=error.cause)
                await context.abort(status_of(error), error_to_json(error))
            finally:
                called()
            return None

        return guarded


def _checked(deserialize: Deserialize, bytes_max: int | None) -> Deserialize:
    """Refuses what is too long before it is parsed, and what does not parse as an error of the caller's."""

    def checked(data: bytes) -> Any:
        if bytes_max is not None and len(data) > bytes_max:
            raise MalformedMessage(f"a message here has at most {bytes_max} bytes")
        try:
            return deserialize(data)
        except DecodeError:
            raise MalformedMessage("a message that cannot be parsed") from None

    return checked


def _nobody() -> None:
    """Who is told of calls by other roles."""
