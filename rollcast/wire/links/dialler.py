"""Dial chunk links: one HTTPS request each, upgraded to a stream of frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from rollcast.runtime.errors import Unreachable, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.certificates import Caller
from rollcast.wire.identity.clock import out_of_time
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.links.handshake import PATH, UPGRADE_HEADERS, LinkLimits, caller_of, greet
from rollcast.wire.links.receiver import LinkClosed
from rollcast.wire.links.stream import LinkStream
from rollcast.wire.links.tcp import SocketOptions

_REASON_BYTES_MAX = 512
_CLOSE_S = 2.0


def _anyone(_caller: Caller) -> str:
    return ""


class LinkDialler:
    """Opens links with this process's credentials. Construct it inside a running event loop.

    Args:
        connector: the source of connections; None: TCP connections are dialled.
    """

    def __init__(
        self,
        credentials: TlsCredentials,
        run_id: RunId,
        limits: LinkLimits,
        options: SocketOptions,
        connector: aiohttp.BaseConnector | None = None,
    ) -> None:
        self._run_id = run_id
        self._limits = limits
        self._options = options
        self._tls = credentials.ssl_client_context()
        # One connection per link, never reused: a link ends with its connection.
        self._session = aiohttp.ClientSession(
            connector=connector or aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.dial_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._streams: dict[LinkStream, aiohttp.ClientResponse] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    async def dial(
        self, peer_id: PeerId, address: str, *, role: str = "", admit: Callable[[Caller], str] = _anyone
    ) -> tuple[LinkStream, Caller]:
        """Open a greeted link to exactly this peer, with this role unless ``role`` is empty.

        Args:
            admit: returns the reason why the authenticated caller may have no link; empty if it may.

        Returns:
            The link and the caller that the other end's certificate names.

        Raises:
            Unreachable: no process answers there, or the other end or ``admit`` refuses the link.
            WrongKey: another process answers there.
            ProtocolMismatch: the two ends speak no common protocol version.
            MalformedMessage: the other end's first frame is no greeting.
            WaitTimedOut: the dial took too long.
        """
        async with deadline(self._limits.dial_timeout_s, f"a chunk link to {peer_id} at {address}"):
            stream, caller = await self._upgraded(peer_id, address)
            if caller.peer_id != peer_id or caller.run_id != self._run_id or (role and caller.role != role):
                error = WrongKey(
                    f"{address} is not the address of {role or 'peer'} {peer_id}",
                    cause=f"it is answered by the {caller.role} {caller.peer_id} of run {caller.run_id}",
                    fix="check which process listens there",
                )
                stream.close(error.what, error.code)
                raise error
            if problem := admit(caller):
                stream.close(problem, Unreachable.code)
                raise Unreachable(f"{peer_id} may have no chunk link", cause=problem)
            await greet(stream, peer_id, self._run_id, self._limits.hello_timeout_s, dialled=True)
            return stream, caller

    def renew(self, credentials: TlsCredentials) -> None:
        """Use these credentials from the next dial on."""
        self._tls = credentials.ssl_client_context()

    async def close(self) -> None:
        """End all links once their written bytes have left, after two seconds at the latest."""
        for stream in self._streams:
            stream.end("the link was closed here")
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._empty.wait()
        except TimeoutError:
            pass  # closing the session cuts the rest
        finally:
            await self._session.close()  # also if the wait is cancelled

    async def _upgraded(self, peer_id: PeerId, address: str) -> tuple[LinkStream, Caller]:
        response = await self._answer(peer_id, address)
        try:
            if response.status != 101:
                reason = (await response.content.read(_REASON_BYTES_MAX)).decode("utf-8", "replace")
                raise Unreachable(f"{peer_id} refused a chunk link", cause=f"{response.status} {reason}")
            transport = response.connection.transport if response.connection is not None else None
            if transport is None:
                raise Unreachable(f"{peer_id} at {address} closed the connection at once")
            caller = caller_of(transport)
            stream = LinkStream.take_over(
                transport,
                self._options,
                write_timeout_s=self._limits.write_timeout_s,
                on_lost=lambda: self._lost(stream),
            )
        except (LinkClosed, aiohttp.ClientError, OSError) as error:
            response.close()
            raise Unreachable(f"{peer_id} at {address} closed the link", cause=str(error)) from None
        except BaseException:
            response.close()
            raise
        self._streams[stream] = response
        self._empty.clear()
        return stream, caller

    def _lost(self, stream: LinkStream) -> None:
        self._streams.pop(stream).close()
        if not self._streams:
            self._empty.set()

    async def _answer(self, peer_id: PeerId, address: str) -> aiohttp.ClientResponse:
        try:
            return await self._session.get(
                f"https://{address}{PATH}",
                headers=UPGRADE_HEADERS,
                ssl=self._tls,
                allow_redirects=False,
                read_until_eof=False,
            )
        except (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError) as error:
            raise out_of_time(address, getattr(error, "certificate_error", None)) or WrongKey(
                f"{address} shows no certificate of this run", cause=str(error), fix="check which process listens there"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(
                f"cannot reach {peer_id} at {address}",
                cause=str(error),
                fix="check link.advertise and the firewall there",
            ) from None
