"""Watching how a port is seen, with a real coordinator, and with others that answer in its place."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from peer.punching import port_keeper as watching
from peer.punching.port import PunchPort
from peer.punching.port_keeper import PATH, watch
from peer.reachability.nat_probe import MemberHttp
from rollcast.runtime.errors import JoinRefused, MalformedMessage, Unreachable
from rollcast.wire.identity.identity import Identity
from tests.coordinator.running import Member, running

Answer = Callable[[web.BaseRequest], Any]


async def test_a_port_is_seen_and_can_be_watched_again(tmp_path: Path) -> None:
    port = PunchPort("127.0.0.1")
    async with running(tmp_path) as run:
        identity = Identity.generate()
        enrolment = await run.join("peer", identity)
        door = MemberHttp(identity, enrolment)
        with pytest.raises(JoinRefused):
            await watch(door.options, port, lambda _: True)
        async with Member(enrolment) as member:
            await member.hello()
            await member.next("welcome")
            for _ in range(3):  # what was ended a moment ago is not in the way
                seen: list[str] = []

                def once(address: str, seen: list[str] = seen) -> bool:
                    seen.append(address)
                    return False

                await watch(door.options, port, once)
                assert seen == [f"127.0.0.1:{port.number}"]
    port.close()


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[Callable[[str], dict[str, Any]]]:
    """Options of requests to a server that answers like this."""
    server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield lambda path: {"url": f"http://127.0.0.1:{port}{path}"}


@pytest.mark.parametrize("line", [b"x\n", b"[]\n", b"{}\n", b'{"address": "::1", "port": 4}\n', b"9" * 300 + b"\n"])
async def test_what_is_no_address_is_refused(line: bytes) -> None:
    async def nonsense(request: web.BaseRequest) -> web.StreamResponse:
        assert request.path == PATH
        return web.Response(body=line)

    port = PunchPort("127.0.0.1")
    async with answering(nonsense) as options:
        with pytest.raises(MalformedMessage):
            await watch(options, port, lambda _: True)
    port.close()


async def test_silence_and_an_end_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SILENCE_S", 0.1)
    ends = asyncio.Event()

    async def falls_silent(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"address": "127.0.0.1", "port": 4}\n')
        await ends.wait()
        return response

    port = PunchPort("127.0.0.1")
    seen: list[str] = []

    def note(address: str) -> bool:
        seen.append(address)
        return True

    async with answering(falls_silent) as options:
        with pytest.raises(Unreachable):
            await watch(options, port, note)
        ends.set()
        await watch(options, port, note)
    assert seen == ["127.0.0.1:4"] * 2
    port.close()


async def test_nobody_there_and_an_older_release_are_said() -> None:
    async def older(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=404)

    port = PunchPort("127.0.0.1")
    async with answering(older) as options:
        with pytest.raises(Unreachable, match="404"):
            await watch(options, port, lambda _: True)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    with pytest.raises(Unreachable):
        await watch(lambda path: {"url": f"http://127.0.0.1:{nobody}{path}"}, port, lambda _: True)
    port.close()
