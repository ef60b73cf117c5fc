"""Test the port that holes are punched from, and how the peer watches its outside address."""

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
from peer.punching.port import Address, PunchPort, address_in
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
    """Yield the options of requests to a server with this answer."""
    server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield lambda path: {"url": f"http://127.0.0.1:{port}{path}"}


@pytest.mark.parametrize("line", [b"x\n", b"[]\n", b"{}\n", b'{"address": "here", "port": 4}\n', b"9" * 300 + b"\n"])
async def test_a_line_without_an_address_is_refused(line: bytes) -> None:
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


async def test_an_absent_or_older_coordinator_is_reported() -> None:
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("192.0.2.1:4000", ("192.0.2.1", 4000)),
        ("192.0.2.1:0", ("192.0.2.1", 0)),
        ("", None),
        ("192.0.2.1", None),
        ("192.0.2.1:65536", None),
        ("192.0.2.1:-1", None),
        ("192.0.2.1:²", None),
        ("example.org:80", None),
        ("[2001:db8::1]:80", ("2001:db8::1", 80)),
        ("[2001:DB8:0::1]:80", ("2001:db8::1", 80)),
        ("2001:db8::1:80", None),
        ("[192.0.2.1]:80", None),
        ("[2001:db8::1]", None),
    ],
)
def test_only_ip_addresses_with_ports_are_dialled(text: str, found: Address | None) -> None:
    assert address_in(text) == found


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_two_ports_that_dial_each_other_have_one_connection(host: str) -> None:
    ports = [PunchPort(host) for _ in range(2)]
    came: asyncio.Queue[tuple[socket.socket, Address]] = asyncio.Queue()
    ports[1].listen(lambda sock, remote: came.put_nowait((sock, remote)))
    remotes = [(host, port.number) for port in ports]
    dialled = await ports[0].dialled(remotes[1])
    accepted, remote = await came.get()
    assert remote == remotes[0]
    with pytest.raises(OSError):  # noqa: PT011 - of which kind is the system's
        await ports[1].dialled(remotes[0])
    assert dialled.getsockname()[:2] == remotes[0]
    assert dialled.getpeername()[:2] == accepted.getsockname()[:2] == remotes[1]
    for one in (dialled, accepted):
        one.close()
    for port in ports:
        port.close()


async def test_connections_are_accepted_only_while_listening() -> None:
    port = PunchPort("127.0.0.1")
    remote = ("127.0.0.1", port.number)
    came: asyncio.Queue[socket.socket] = asyncio.Queue()
    for _ in range(2):
        other = PunchPort("127.0.0.1")
        with pytest.raises(ConnectionRefusedError):
            await other.dialled(remote)
        for _ in range(2):  # the second time it listens already
            port.listen(lambda sock, _remote: came.put_nowait(sock))
        (await other.dialled(remote)).close()
        (await came.get()).close()
        port.deafen()
        other.close()
    port.close()


async def test_the_port_stays_the_same_and_can_be_chosen() -> None:
    port = PunchPort("127.0.0.1")
    again = PunchPort("127.0.0.1", port.number)
    assert again.number == port.number
    one = port.bound()
    assert one.getsockname() == ("127.0.0.1", port.number)
    one.close()
    port.close()
    again.close()
