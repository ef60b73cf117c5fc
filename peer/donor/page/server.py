"""Serve the page of this machine's owner, on loopback only: static files, its report as a stream, the commands."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from peer.donor.control.control import Command
from peer.donor.page.auth import BODY_BYTES_MAX, HOST, new_token, refusal
from rollcast.runtime.errors import MalformedMessage, RollcastError
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.web.assets import STATIC, Assets
from rollcast.web.headers import NO_STORE, SECURITY_HEADERS
from rollcast.wire.joining.error_json import error_to_json

log = structlog.get_logger()

FILE = "page.json"
PAGES = Path(__file__).parent / "pages"
ACTS = ("pause", "resume", "finish", "limits", "leave")
_FILE_BYTES_MAX = 4096
_TICK_S = 1.0  # between two checks for news; stream.js treats a stream that is silent for 5 s as dead
_READERS_MAX = 16
_WRITE_DEADLINE_S = 5.0
_BEAT = b": nothing new\n\n"

#: Returns a topic's newest message, as plain data; None: there is none. It is sent when it has changed.
Topic = Callable[[], Any]
#: Makes a file, and returns its name and its bytes.
MakeFile = Callable[[], Awaitable[tuple[str, bytes]]]


class PageServer:
    """The server of one owner's page.

    Args:
        folder: the peer's state folder, where port and token are saved, so that a bookmark keeps working.
        commands: commands of the control socket, by name; the page may request those of ACTS.
        reads: functions that return what GET /api/v1/NAME answers, by name.
        topics: topics of the stream, by name.
        bug_report: makes a bug report.
    """

    def __init__(
        self,
        folder: Path,
        *,
        commands: Mapping[str, Command],
        reads: Mapping[str, Topic],
        topics: Mapping[str, Topic],
        bug_report: MakeFile,
    ) -> None:
        self._path = folder / FILE
        self._commands = commands
        self._reads = reads
        self._topics = topics
        self._bug_report = bug_report
        self._assets = Assets.of({"/": PAGES, "/web/": STATIC})
        self._port, self._token = self._read()
        self._readers = 0
        self._closing = asyncio.Event()

    @property
    def url(self) -> str:
        """Return the page's address, with the token in its fragment, which no browser sends anywhere."""
        return f"http://{HOST}:{self._port}/#token={self._token}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen while the body runs. If the port of last time is taken, the system chooses another one.

        Raises:
            RunFolderError: port and token cannot be saved.
        """
        runner = web.ServerRunner(web.Server(self._answer, access_log=None), handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            try:
                self._port = await _listen(runner, self._port)
            except OSError:
                self._port = await _listen(runner, 0)
            await asyncio.to_thread(self._keep)
            yield
        finally:
            self._closing.set()
            await runner.cleanup()

    # ------------------------------------------------------------ requests

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        refused = refusal(request.method, request.path, request.headers, token=self._token, port=self._port)
        if refused is not None:
            status, why = refused
            return _json({"code": "RC307", "what": why}, status=status)
        try:
            if not request.path.startswith("/api/"):
                return self._static(request)
            if request.path == "/api/v1/stream":
                return await self._stream(request)
            if request.method == "POST":
                return await self._post(request)
            read = self._reads.get(request.path.removeprefix("/api/v1/"))
            return _json({"what": "this address does not exist"}, status=404) if read is None else _json(read())
        except RollcastError as error:
            return _json(json.loads(error_to_json(error)), status=400)

    def _static(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = request.headers
        reply = self._assets.reply(
            request.path,
            accept_encoding=headers.get("Accept-Encoding", ""),
            if_none_match=headers.get("If-None-Match", ""),
        )
        if reply is None:
            return _json({"what": "this address does not exist"}, status=404)
        return web.Response(status=reply.status, body=reply.body, headers={**SECURITY_HEADERS, **reply.headers})

    async def _post(self, request: web.BaseRequest) -> web.StreamResponse:
        values = await self._body(request)
        if request.path == "/api/v1/bugreport":
            name, data = await self._bug_report()
            said = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Type": "application/gzip"}
            return web.Response(body=data, headers={**SECURITY_HEADERS, **NO_STORE, **said})
        do = str(values.get("do"))
        if request.path != "/api/v1/acts" or do not in ACTS:
            raise MalformedMessage("this act does not exist", fix=f"one of {', '.join(ACTS)}")
        log.info("owner request on the page", act=do)
        return _json(self._commands[do](values))

    async def _body(self, request: web.BaseRequest) -> dict[str, Any]:
        if (request.content_length or 0) > BODY_BYTES_MAX:
            raise MalformedMessage("the request body is too long")
        data = b""
        async with asyncio.timeout(_WRITE_DEADLINE_S):
            while part := await request.content.read(BODY_BYTES_MAX):
                data += part
                if len(data) > BODY_BYTES_MAX:
                    raise MalformedMessage("the request body is too long")
        try:
            values = json.loads(data)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise MalformedMessage("the request body is not a JSON object")
        return values

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        names = [name for name in request.query.get("topics", "").split(",") if name in self._topics]
        if not names or self._readers >= _READERS_MAX:
            raise MalformedMessage("no such topics, or too many pages are open", fix=f"of {', '.join(self._topics)}")
        response = web.StreamResponse(headers={**SECURITY_HEADERS, **NO_STORE, "Content-Type": "text/event-stream"})
        self._readers += 1
        try:
            await response.prepare(request)
            sent: dict[str, str] = {}
            while not self._closing.is_set():
                async with asyncio.timeout(_WRITE_DEADLINE_S):
                    await response.write(self._news(names, sent) or _BEAT)
                await self._pause()
        except (TimeoutError, ConnectionError):
            pass  # the reader is gone; it reconnects by itself
        finally:
            self._readers -= 1
        return response

    def _news(self, names: list[str], sent: dict[str, str]) -> bytes:
        parts = []
        for name in names:
            value = self._topics[name]()
            text = "" if value is None else json.dumps(value, separators=(",", ":"), default=str)
            if text and text != sent.get(name):
                sent[name] = text
                parts.append(f"event: {name}\ndata: {text}\n\n")
        return "".join(parts).encode()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_TICK_S):
                await self._closing.wait()
        except TimeoutError:
            return

    # ------------------------------------------------------------ port and token

    def _read(self) -> tuple[int, str]:
        try:
            with self._path.open("rb") as file:
                values = json.loads(file.read(_FILE_BYTES_MAX))
            port, token = values["port"], values["token"]
            if isinstance(port, int) and 0 < port < 65536 and isinstance(token, str) and len(token) >= 32:
                return port, token
        except (OSError, ValueError, KeyError, TypeError):
            pass  # made anew
        return 0, new_token()

    def _keep(self) -> None:
        try:
            write_atomically(self._path, json.dumps({"port": self._port, "token": self._token}).encode(), mode=0o600)
        except OSError as error:
            raise run_folder_error(self._path.parent, error) from None
        os.chmod(self._path, 0o600)


async def _listen(runner: web.ServerRunner, port: int) -> int:
    """Start to listen on this port, and return it; 0 lets the system choose."""
    await web.TCPSite(runner, HOST, port).start()
    bound: int = runner.addresses[-1][1]
    return bound


def _json(value: Any, status: int = 200) -> web.Response:
    text = json.dumps(value, separators=(",", ":"), default=str)
    headers = {**SECURITY_HEADERS, **NO_STORE}
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)
