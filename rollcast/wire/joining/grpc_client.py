"""Open the client's end of the control connection, and translate errors across it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc
import grpc.aio

from rollcast.runtime.errors import (
    BadSignature,
    JoinRefused,
    MalformedMessage,
    ProtocolMismatch,
    RateLimited,
    RollcastError,
    StoreError,
    TaskError,
    Unreachable,
    WaitTimedOut,
    WrongKey,
)
from rollcast.wire.identity.tls import CHANNEL_OPTIONS, TlsCredentials
from rollcast.wire.joining.error_json import error_from_json, error_to_json

__all__ = ["connection_lost", "end_call", "error_to_json", "open_channel", "status_of", "translate"]

_STATUS_BY_KIND: dict[type[RollcastError], grpc.StatusCode] = {
    JoinRefused: grpc.StatusCode.PERMISSION_DENIED,
    WrongKey: grpc.StatusCode.UNAUTHENTICATED,
    BadSignature: grpc.StatusCode.INVALID_ARGUMENT,
    MalformedMessage: grpc.StatusCode.INVALID_ARGUMENT,
    ProtocolMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    TaskError: grpc.StatusCode.FAILED_PRECONDITION,
    StoreError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RateLimited: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unreachable: grpc.StatusCode.UNAVAILABLE,
    WaitTimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
}


def open_channel(address: str, credentials: TlsCredentials) -> grpc.aio.Channel:
    """Return a channel to the coordinator over mutual TLS.

    The channel connects on first use and reconnects by itself; the caller closes it.
    """
    return grpc.aio.secure_channel(address, credentials.grpc_channel_credentials(), options=list(CHANNEL_OPTIONS))


def end_call(call: Any) -> None:
    """Cancel a call of ``grpc.aio``, also one that only seems to have ended.

    A write that fails marks a call as done, and ``cancel`` does nothing from then on; but where messages are left, the
    core waits for them to be read, and keeps the connection for as long, even once its channel is closed.
    """
    call.cancel()
    call._cython_call.cancel("ended by this side")


@contextmanager
def connection_lost(doing: str) -> Iterator[None]:
    """Treat a call that was cancelled under the body as a lost connection. ``doing`` completes "while ...".

    ``grpc.aio`` raises CancelledError from a call that this process has cancelled in another task: by closing its
    channel, or by a timeout of a write on the same stream. Only if the current task itself is being cancelled does the
    CancelledError pass. Use it inside a task.

    Raises:
        Unreachable: the call was cancelled, and the current task was not.
    """
    try:
        yield
    except asyncio.CancelledError:
        if cast("asyncio.Task[Any]", asyncio.current_task()).cancelling():
            raise
        raise Unreachable(
            f"the connection to the coordinator was lost while {doing}",
            cause="the call was cancelled on our side",
            fix="the call is repeated once there is a connection; if it fails repeatedly, see the log before it",
        ) from None


def status_of(error: RollcastError) -> grpc.StatusCode:
    """Return the gRPC status under which a server sends ``error``, with ``error_to_json(error)`` as details."""
    return _STATUS_BY_KIND.get(type(error), grpc.StatusCode.INTERNAL)


def translate(error: grpc.RpcError, doing: str) -> RollcastError:
    """Translate a gRPC error into one that a person can act on; ``doing`` completes "while ..."."""
    code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else "") or ""
    sent = error_from_json(details)
    if sent is not None:
        return sent
    cause = f"{code.name}: {details[:400]}"
    match code:
        case grpc.StatusCode.UNAVAILABLE if _is_about_tls(details):
            return WrongKey(
                f"no secure connection to the coordinator while {doing}",
                cause=cause,
                fix="the run has another CA or this certificate has expired: join again with a new invite",
            )
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:  # a server that stops cancels its calls
            return Unreachable(
                f"the coordinator cannot be reached while {doing}",
                cause=cause,
                fix="check that it runs, that its control port can be reached from here, and that the run is ours",
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return WaitTimedOut(f"the coordinator did not answer in time while {doing}", fix="check its load and log")
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return WrongKey(
                f"the coordinator refused the call while {doing}", cause=cause, fix="join again with a new invite"
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return ProtocolMismatch(
                f"the coordinator does not know a call while {doing}",
                cause=cause,
                fix="run the same version of Rollcast on both sides",
            )
        case _:
            return RollcastError(f"the coordinator failed while {doing}", cause=cause, fix="read the coordinator's log")


def _is_about_tls(details: str) -> bool:
    """Return whether the details of an error name a failed handshake, for which gRPC has no status."""
    return any(word in details.lower() for word in ("handshake", "certificate", "verification check"))
