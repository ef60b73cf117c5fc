"""Probe whether a peer answers at an address: a TLS handshake that shows its peer id, without opening a link."""

from __future__ import annotations

import asyncio
import os
from ssl import SSLError

from rollcast.runtime.errors import RollcastError, Unreachable, WaitTimedOut, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.links.handshake import caller_of

PROBE_DEADLINE_S = 5.0


async def probe_link(
    peer_id: PeerId, address: str, *, credentials: TlsCredentials, run_id: RunId, deadline_s: float = PROBE_DEADLINE_S
) -> None:
    """Return once this peer of this run has shown its certificate at host:port.

    Raises:
        Unreachable: no process answers there, or the address is no host:port.
        WrongKey: another process answers there, or it shows no certificate of this run.
        WaitTimedOut: the handshake takes too long.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise Unreachable(f"{address!r} is no host:port")
    context = await asyncio.to_thread(credentials.ssl_client_context)  # in a thread, because it writes and reads a file
    async with deadline(deadline_s, f"{peer_id} to answer at {address}"):
        try:
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context, server_hostname="")
        except SSLError as error:
            raise WrongKey(f"{address} shows no certificate of this run", cause=error.reason or str(error)) from None
        except (OSError, OverflowError) as error:
            cause = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise Unreachable(f"cannot reach {peer_id} at {address}", cause=cause) from None
        try:
            caller = caller_of(writer.transport)
            if caller.peer_id != peer_id or caller.run_id != run_id:
                raise WrongKey(f"{address} is answered by the {caller.role} {caller.peer_id}, not by {peer_id}")
        finally:
            writer.transport.abort()


def problem_in(error: RollcastError) -> str:
    """Return why a probe failed, in few words; the same reason gives the same words, so that they can be counted."""
    if isinstance(error, WaitTimedOut):
        return "no answer"
    return error.what if isinstance(error, WrongKey) else error.cause or error.what
