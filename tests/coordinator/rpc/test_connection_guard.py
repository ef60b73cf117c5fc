"""Test that connections without a call are closed beyond what an address may have; over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from coordinator.rpc import connection_guard
from coordinator.rpc.connection_guard import ARRIVAL_S, Busy, ConnectionGuard, Remote, established, remote_of

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def test_the_other_end_of_a_grpc_peer() -> None:
    assert remote_of("ipv4:192.0.2.7:4242") == ("192.0.2.7", 4242)
    assert remote_of("ipv6:%5B2001:db8::1%5D:4242") == ("2001:db8::1", 4242)
    assert remote_of("ipv6:%5B::ffff:192.0.2.7%5D:4242") == ("192.0.2.7", 4242)
    assert [remote_of(text) for text in ("", "unix:/tmp/x", "ipv4:nowhere:1", "ipv4:192.0.2.7:x")] == [None] * 4


def test_calls_in_progress_are_counted() -> None:
    busy = Busy()
    for _ in range(2):
        busy.began("ipv4:192.0.2.7:1")
    busy.ended("ipv4:192.0.2.7:1")
    assert busy.calls == {("192.0.2.7", 1): 1}
    busy.ended("ipv4:192.0.2.7:1")
    assert not busy.calls


@contextlib.asynccontextmanager
async def connections(count: int) -> AsyncIterator[tuple[int, list[Pair]]]:
    """Open connections to a port of this process, one after the other."""
    served: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: served.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        yield port, opened
    finally:
        for writer in (*(writer for _, writer in opened), *served):
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="sockets of this process are found in /proc")
async def test_the_oldest_connections_without_a_call_are_closed() -> None:
    async with connections(12) as (port, opened):
        names = [writer.get_extra_info("sockname")[:2] for _, writer in opened]
        busy = Busy()
        busy.began(f"ipv4:127.0.0.1:{names[0][1]}")
        refused: Counter[str] = Counter()
        guard = ConnectionGuard(port, busy, refused, per_address=4, most=100, clock=lambda: ARRIVAL_S)
        guard._seen = dict.fromkeys(names, 0.0)  # in order of age, which one look at the table does not show
        assert set(established(port)) == set(names)
        assert await guard.check() == 7
        for index, (reader, _) in enumerate(opened):
            if 1 <= index <= 7:
                assert await asyncio.wait_for(reader.read(), 20) == b""
        assert not any(opened[index][0].at_eof() for index in (0, 8, 9, 10, 11))
        assert refused == {"too_many_connections": 7}


@pytest.mark.skipif(sys.platform != "linux", reason="sockets of this process are found in /proc")
async def test_of_those_that_have_just_connected_the_newest_are_closed() -> None:
    async with connections(12) as (port, opened):
        names = [writer.get_extra_info("sockname")[:2] for _, writer in opened]
        guard = ConnectionGuard(port, Busy(), Counter(), per_address=4, most=100, clock=lambda: ARRIVAL_S)
        guard._seen = dict.fromkeys(names[:2], 0.0) | dict.fromkeys(names[2:], 1.0)  # two have been idle for too long
        assert await guard.check() == 6
        for reader, _ in opened[6:]:
            assert await asyncio.wait_for(reader.read(), 20) == b""
        assert not any(reader.at_eof() for reader, _ in opened[:6])


def test_a_fleet_that_returns_at_once_gets_in() -> None:
    """A handshake takes longer than the time between two looks, as the processor does hundreds at once."""
    members, served_a_second, handshake_s = 600, 20, 3.0
    now, busy = 0.0, Busy()
    guard = ConnectionGuard(1, busy, Counter(), per_address=100, most=400, clock=lambda: now)
    open_since: dict[Remote, float] = {}
    ports = itertools.count(1)
    while len(busy.calls) < members and now < 4 * members / served_a_second:
        connected = {host for host, _ in open_since}
        for host in (f"198.51.{number >> 8}.{number & 255}" for number in range(members)):
            if host not in connected:
                open_since[host, next(ports)] = now
        ready = [one for one, at in open_since.items() if one not in busy.calls and now - at >= handshake_s]
        for host, port in ready[:served_a_second]:
            busy.began(f"ipv4:{host}:{port}")
        for one in guard._excess(dict.fromkeys(open_since)):
            del open_since[one]
        assert len(open_since) - len(busy.calls) <= 100
        now += 1.0
    assert len(busy.calls) == members
    assert now <= members / served_a_second + 2 * handshake_s, "no handshake was in vain"


@pytest.mark.skipif(sys.platform != "linux", reason="sockets of this process are found in /proc")
async def test_the_machines_sockets_are_not_listed_while_this_process_has_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_guard, "established", lambda _port: pytest.fail("listed"))
    before = connection_guard.open_files()
    with socket.socket():
        assert connection_guard.open_files() == before + 1
        guard = ConnectionGuard(1, Busy(), Counter(), per_address=before + 2, most=before + 2)
        assert await guard.check() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="sockets of this process are found in /proc")
async def test_a_process_without_a_free_descriptor_is_guarded_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, over = itertools.count(), asyncio.Event()

    def established_or_not(_port: int) -> list[Remote]:
        if next(looks) < 2:
            raise OSError(errno.EMFILE, "too many open files")
        loop.call_soon_threadsafe(over.set)
        return []

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(connection_guard, "established", established_or_not)
    monkeypatch.setattr(connection_guard, "INTERVAL_S", 0.0)
    with capture_logs() as logs:
        guarding = asyncio.create_task(ConnectionGuard(1, Busy(), Counter(), per_address=0, most=0).run())
        async with asyncio.timeout(10.0):
            await over.wait()
        guarding.cancel()
        await asyncio.wait([guarding])
    assert [line["event"] for line in logs] == ["connections without a call cannot be found"]


async def test_a_port_that_members_fill_is_reported_once() -> None:
    busy = Busy()
    guard = ConnectionGuard(1, busy, Counter(), per_address=10_000, most=10_000, allowed=2)
    with capture_logs() as logs:
        for port in (1, 2):
            busy.began(f"ipv4:192.0.2.7:{port}")
            await guard.check()
        await guard.check()
    assert [(line["event"], line["connections"]) for line in logs] == [
        ("the control port has no room for further members", 2)
    ]
