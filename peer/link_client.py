"""Dials chunk links: one HTTPS request each, whose body stays open for as long as the link."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter

from peer.stream_link import PATH, StreamLink, caller_of
from peer.transport import LinkClosed, LinkLimits, greet, refuse
from rollcast.runtime.errors import RollcastError, Unreachable, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.tls import Caller, TlsCredentials

_READ_BUFFER_BYTES = 256 << 10
_REASON_BYTES_MAX = 512


class _OpenBody(aiohttp.Payload):
    """A request body that is written by the link, until the link ends."""

    def __init__(self) -> None:
        super().__init__(b"", content_type="application/octet-stream")
        self.writer: asyncio.Future[StreamWriter] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("the body of a link is not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Called by aiohttp once the connection stands."""
        assert isinstance(writer, StreamWriter)
        if not self.writer.done():
            self.writer.set_result(writer)
        await self._ended.wait()

    def end(self) -> None:
        """Let aiohttp finish the request."""
        self._ended.set()


class LinkClient:
    """Opens links with our credentials."""

    def __init__(self, credentials: TlsCredentials, run_id: RunId, limits: LinkLimits) -> None:
        self._run_id = run_id
        self._limits = limits
        self._tls = credentials.ssl_client_context()
        # One connection per link, never reused: a link ends with its connection.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.dial_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
        )
        self._links: set[StreamLink] = set()

    async def dial(self, peer_id: PeerId, address: str) -> StreamLink:
        """See peer.transport.ChunkTransport.dial."""
        async with deadline(self._limits.dial_timeout_s, f"a chunk link to {peer_id} at {address}"):
            body = _OpenBody()
            posting = asyncio.ensure_future(
                self._session.post(f"https://{address}{PATH}", data=body, ssl=self._tls, allow_redirects=False)
            )
            try:
                return await self._open(peer_id, address, body, posting)
            except BaseException:
                body.end()
                posting.cancel()
                await asyncio.gather(posting, return_exceptions=True)
                raise

    def renew(self, credentials: TlsCredentials) -> None:
        """Show this certificate from the next dial on."""
        self._tls = credentials.ssl_client_context()

    async def close(self) -> None:
        """End all links."""
        for link in list(self._links):
            await link.close()
        await self._session.close()

    async def _open(
        self, peer_id: PeerId, address: str, body: _OpenBody, posting: asyncio.Future[aiohttp.ClientResponse]
    ) -> StreamLink:
        await asyncio.wait((body.writer, posting), return_when=asyncio.FIRST_COMPLETED)
        if not body.writer.done():
            return await self._not_connected(peer_id, address, posting)
        writer = body.writer.result()
        transport = writer.transport
        if transport is None:
            raise Unreachable(f"{peer_id} at {address} closed the connection at once")
        caller = caller_of(transport)
        if caller.peer_id != peer_id or caller.run_id != self._run_id:
            raise WrongKey(
                f"{address} is not the address of {peer_id}",
                cause=f"it is answered by the {caller.role} {caller.peer_id} of run {caller.run_id}",
                fix="the relay plan is renewed when that peer joins again",
            )
        writer.send_headers()
        try:
            response = await posting
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{peer_id} at {address} closed the link", cause=str(error)) from None
        if response.status != 200:
            reason = (await response.content.read(_REASON_BYTES_MAX)).decode("utf-8", "replace")
            response.close()
            raise Unreachable(f"{peer_id} refused a chunk link", cause=f"{response.status} {reason}")
        return await self._greeted(caller, body, response, writer, transport)

    async def _not_connected(
        self, peer_id: PeerId, address: str, posting: asyncio.Future[aiohttp.ClientResponse]
    ) -> StreamLink:
        try:
            (await posting).close()
            raise Unreachable(f"{address} does not speak the protocol of chunk links")
        except (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError) as error:
            raise WrongKey(
                f"{address} shows no certificate of this run", cause=str(error), fix="see which process listens there"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(
                f"cannot reach {peer_id} at {address}",
                cause=str(error),
                fix="check link.advertise and the firewall there",
            ) from None

    async def _greeted(
        self,
        caller: Caller,
        body: _OpenBody,
        response: aiohttp.ClientResponse,
        writer: StreamWriter,
        transport: asyncio.Transport,
    ) -> StreamLink:
        def ended() -> None:
            self._links.discard(link)
            body.end()
            response.close()

        link = StreamLink(
            caller,
            dialled=True,
            writer=writer,
            reader=response.content,
            transport=transport,
            limits=self._limits,
            on_close=ended,
        )
        self._links.add(link)
        try:
            await greet(link, self._run_id, self._limits)
        except LinkClosed as error:
            await link.close()
            raise Unreachable(f"{caller.peer_id} closed the link", cause=str(error)) from None
        except RollcastError as error:
            await refuse(link, error)
            raise
        except BaseException:
            await link.close()
            raise
        return link
