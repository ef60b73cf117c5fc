"""Read byte ranges of files on HTTPS servers that are not trusted: every answer is bounded in size and in time.

Plain http is for loopback only. A redirect may lead to https, and from loopback to loopback. Credentials go only to the
addresses that the headers file names, and never into logs or messages.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from peer.mirrors.headers import MirrorHeaders
from rollcast import __version__
from rollcast.runtime.errors import MalformedMessage, Unreachable
from rollcast.runtime.waits import deadline
from rollcast.wire.checks import require
from rollcast.wire.links.tcp import set_receive_bytes

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REDIRECTS_MOST = 4
_READ_BUFFER_BYTES = 256 << 10
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class NotThere(Exception):
    """The server does not have the file, or does not let this peer read it."""


class Busy(Exception):
    """The server cannot answer now; ``wait_s`` is the wait in seconds that it asks for, 0 if it names none."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Deadlines of one request.

    Args:
        connect_timeout_s: until the server is connected.
        silence_timeout_s: until the answer begins, and between two pieces of it.
        slowest_bytes_per_second: an answer may take ``silence_timeout_s`` and its size over this, not counting the time
            in which its reader does not read.
    """

    connect_timeout_s: float = 10.0
    silence_timeout_s: float = 15.0
    slowest_bytes_per_second: float = 16384.0


class HttpRanges:
    """One pool of connections. Make it inside a running event loop.

    Args:
        headers: the headers for servers that ask for credentials.
        connections_per_host: connections to one server that are open at a time.
        tls: the trusted certificate authorities; None: the system's.
        receive_bytes: returns how many bytes from an IP address the kernel may buffer; None: no limit.
    """

    def __init__(
        self,
        headers: MirrorHeaders,
        limits: HttpLimits,
        *,
        connections_per_host: int,
        tls: ssl.SSLContext | None = None,
        receive_bytes: Callable[[str], int | None] = lambda _address: None,
    ) -> None:
        self._headers = headers
        self._limits = limits
        self._receive_bytes = receive_bytes
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, limit_per_host=connections_per_host, ssl=tls or True, socket_factory=self._socket
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
            headers={"Accept-Encoding": "identity", "User-Agent": f"rollcast/{__version__}"},
        )

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, where = address
        made = socket.socket(family, kind, protocol)
        most = self._receive_bytes(str(where[0]))
        if most is not None:
            set_receive_bytes(made, most)
        return made

    async def reach(self, address: str) -> None:
        """Open a connection in advance, so that the first file does not wait for one.

        Raises:
            Unreachable: the server does not answer, or cannot answer now.
            WaitTimedOut: the server took too long.
        """
        url = url_of(address)
        async with deadline(self._limits.connect_timeout_s, f"the mirror {shown(address)}"):
            try:
                async with self._session.head(
                    url, headers=self._headers.of(str(url)), allow_redirects=False
                ) as response:
                    status = response.status
            except (aiohttp.ClientError, OSError) as error:
                raise Unreachable(f"cannot reach the mirror {shown(address)}", cause=_what(error)) from None
        if status >= 500 or status == 429:
            raise Unreachable(f"the mirror {shown(address)} cannot answer now", cause=f"HTTP status {status}")

    async def whole(self, address: str, bytes_most: int) -> bytes:
        """Return a whole file of at most ``bytes_most`` bytes.

        Raises:
            NotThere, Busy: as their names say.
            MalformedMessage: it is longer than ``bytes_most``, or the answer is nonsense.
        """
        async with self._answer(address, {}) as response:
            if response.status != 200:
                raise _refusal(response)
            _check_form(response.headers)
            length = response.content_length
            require(length is None or length <= bytes_most, f"{shown(address)} has more than {bytes_most} bytes")
            body = _Body(response, self._limits, bytes_most)
            data = bytearray()
            while piece := await body.read():
                data += piece
                require(len(data) <= bytes_most, f"{shown(address)} has more than {bytes_most} bytes")
            return bytes(data)

    async def part(self, address: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes [start, stop) of a file as they come: exactly so many, or an error.

        Raises:
            NotThere, Busy: as their names say.
            MalformedMessage: the answer is another range, or nonsense.
        """
        async with self._answer(address, {"Range": f"bytes={start}-{stop - 1}"}) as response:
            if response.status == 416:
                raise NotThere("the file is shorter than the signed encoding")
            if response.status not in (200, 206):
                raise _refusal(response)
            _check_form(response.headers)
            if response.status == 206:
                _check_range(response.headers.get("Content-Range", ""), start, stop)
                require(response.content_length in (None, stop - start), "a mirror sent a range of another length")
            elif start:
                raise NotThere("the server does not serve byte ranges")
            missing = stop - start
            body = _Body(response, self._limits, missing)
            while missing > 0:
                piece = (await body.read())[:missing]
                if not piece:
                    raise Busy("the answer broke off")
                missing -= len(piece)
                yield piece

    async def close(self) -> None:
        """Cancel every request and close the connections."""
        await self._session.close()

    @asynccontextmanager
    async def _answer(self, address: str, headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the answer once its headers are here, after redirects."""
        url = url_of(address)
        for _ in range(_REDIRECTS_MOST + 1):
            response = await self._get(url, {**self._headers.of(str(url)), **headers})
            async with response:
                if response.status not in (301, 302, 303, 307, 308):
                    yield response
                    return
                url = _redirected(url, response.headers.get("Location", ""))
        raise MalformedMessage(f"{shown(address)} redirects more than {_REDIRECTS_MOST} times")

    async def _get(self, url: URL, headers: dict[str, str]) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s + self._limits.silence_timeout_s):
                return await self._session.get(url, headers=headers, allow_redirects=False)
        except TimeoutError:
            raise Busy(f"{shown(str(url))} did not answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Busy(f"{shown(str(url))}: {_what(error)}") from None


class _Body:
    """Reads an answer piece by piece in bounded time; the time between two reads does not count."""

    def __init__(self, response: aiohttp.ClientResponse, limits: HttpLimits, size_bytes: int) -> None:
        self._content = response.content
        self._silence_timeout_s = limits.silence_timeout_s
        self._left_s = limits.silence_timeout_s + size_bytes / limits.slowest_bytes_per_second

    async def read(self) -> bytes:
        """Return the next piece, empty at the end of the answer; raise Busy if it takes too long."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            async with asyncio.timeout(min(self._silence_timeout_s, self._left_s)):
                return await self._content.readany()
        except TimeoutError:
            raise Busy("the answer comes too slowly") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Busy(f"the answer broke off: {_what(error)}") from None
        finally:
            self._left_s -= clock() - began_s


def url_of(address: str, *below: str) -> URL:
    """Return the URL of a mirror, or of a file below it; a query (a presigned prefix) stays at the end.

    Raises:
        Unreachable: it is neither https nor on loopback, or carries a password.
    """
    place, question, query = address.partition("?")
    text = "/".join((place.rstrip("/"), *below)) if below else place
    try:
        url = URL(f"{text}{question}{query}", encoded=True)
        allowed = _is_allowed(url)
    except ValueError:
        allowed = False
    if not allowed:
        raise Unreachable(
            f"{shown(address)} is not the address of a mirror",
            cause="neither https nor http on loopback, or with a user name in it",
            fix="give https://host/prefix; credentials belong into mirror.headers_file",
        )
    return url


def shown(address: str) -> str:
    """Return an address without the components that may be secret: user, password and query."""
    scheme, separator, rest = address.partition("?")[0].partition("#")[0].rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"[:200]


def _is_allowed(url: URL) -> bool:
    if not url.host or url.user is not None or url.password is not None:
        return False
    return url.scheme == "https" or (url.scheme == "http" and url.host in _LOOPBACK)


def _redirected(url: URL, location: str) -> URL:
    try:
        target = url.join(URL(location, encoded=True))
        allowed = bool(location) and _is_allowed(target) and not (url.scheme == "https" and target.scheme == "http")
    except ValueError:
        allowed = False
    if not allowed:
        raise MalformedMessage(f"{shown(str(url))} redirects to {shown(location)!r}, which is not https")
    return target


def _refusal(response: aiohttp.ClientResponse) -> Exception:
    status = response.status
    reason = f"HTTP status {status}"
    if status in (408, 425, 429) or status >= 500:
        return Busy(reason, _retry_after_s(response.headers.get("Retry-After", "")))
    # Object stores answer 403 where a listing is not allowed and the object is not there.
    return NotThere(reason)


def _retry_after_s(text: str) -> float:
    """Return the seconds of a Retry-After header (RFC 9110 section 10.2.3: seconds or a date); 0 if it is neither."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    if moment.tzinfo is None:
        return 0.0
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _check_form(headers: CIMultiDictProxy[str]) -> None:
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    require(coding in ("", "identity"), "a mirror sent a compressed answer")


def _check_range(text: str, start: int, stop: int) -> None:
    match = _CONTENT_RANGE.fullmatch(text.strip())
    require(match is not None, "a mirror sent a range without a Content-Range")
    assert match is not None
    if (int(match[1]), int(match[2])) == (start, stop - 1):
        return
    if int(match[1]) == start and match[3] != "*" and int(match[2]) + 1 == int(match[3]) < stop:
        raise NotThere("the file is shorter than the signed encoding")
    raise MalformedMessage("a mirror sent another range than the one that was requested")


def _what(error: Exception) -> str:
    return type(error).__name__ if not isinstance(error, OSError) else (error.strerror or type(error).__name__)
