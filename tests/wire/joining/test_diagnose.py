"""Test a failure of each hop in turn, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollcast.runtime.errors import ClockWrong, Unreachable, WrongKey
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import RunId
from rollcast.wire.joining import diagnose
from rollcast.wire.joining.diagnose import HopFailed, failed_hop

RUN_ID = RunId("run-1")
Says = Callable[[asyncio.StreamWriter], None]


class World:
    def __init__(self, folder: Path) -> None:
        self.ca = RunCA.create(folder / "ca", RUN_ID)
        self.other = RunCA.create(folder / "other", RUN_ID)
        key = new_tls_key()
        certificate = self.ca.issue_coordinator(key.csr_pem(), ["127.0.0.1"])
        self.server = TlsCredentials(self.ca.certificate_pem, certificate, key.private_pem).ssl_server_context()

    def client(self, trusts: RunCA, shows: RunCA) -> ssl.SSLContext:
        key = new_tls_key()
        peer_id = Identity.generate().peer_id
        certificate = shows.issue(key.csr_pem(), peer_id=peer_id, role="peer", lifetime_s=60.0)
        return TlsCredentials(trusts.certificate_pem, certificate, key.private_pem).ssl_client_context()


@asynccontextmanager
async def listening(says: Says, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    taking: list[asyncio.Task[None]] = []

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taking.append(asyncio.current_task())  # type: ignore[arg-type]
        says(writer)
        with contextlib.suppress(OSError):
            while await reader.read(1024):
                pass
        writer.close()

    server = await asyncio.start_server(taken, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait_for(asyncio.gather(*taking), 5.0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_name_without_an_address() -> None:
    failed = await failed_hop("no-such-host.invalid:7400", None)
    assert failed is not None
    assert failed.hop == "name lookup"
    assert "no-such-host.invalid" in str(failed)
    assert "DNS" in failed.fix


async def test_a_port_without_a_listener() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        failed = await failed_hop(f"localhost:{port}", None)
    assert failed is not None
    assert failed.hop == "connection"
    assert f"127.0.0.1:{port} refuses the connection" in failed.reason


async def test_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "CONNECT_S", 0.2)
    with socket.socket() as full, socket.socket() as fills:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # one connection waits to be accepted; the next one's first packet is dropped, as by a firewall
        fills.connect(full.getsockname())
        port = full.getsockname()[1]
        failed = await failed_hop(f"127.0.0.1:{port}", None)
    assert failed == HopFailed("connection", f"127.0.0.1:{port}", f"127.0.0.1:{port} does not answer for 0.2 s")


async def test_something_that_speaks_no_tls(world: World) -> None:
    async with listening(lambda writer: writer.write(b"SSH-2.0-x\r\n")) as address:
        failed = await failed_hop(address, world.client(world.ca, world.ca))
        assert failed is not None
        assert failed.hop == "TLS"
        assert await failed_hop(address, None) is None


async def test_a_server_that_sends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "HANDSHAKE_S", 0.2)
    async with listening(lambda writer: None) as address:
        failed = await failed_hop(address, world.client(world.ca, world.ca))
    assert failed is not None
    assert failed.hop == "TLS"
    assert "sends nothing" in failed.reason


async def test_a_coordinator_of_another_run(world: World) -> None:
    async with listening(lambda writer: writer.write(b"x"), world.server) as address:
        failed = await failed_hop(address, world.client(world.other, world.ca), reads_first=True)
    assert failed is not None
    assert failed.hop == "certificate"
    assert "no certificate of this run" in failed.reason
    assert isinstance(failed.as_error("no session"), WrongKey)


async def test_a_clock_by_which_the_coordinators_certificate_is_not_valid(world: World) -> None:
    key = new_tls_key()
    over = world.ca.issue_coordinator(key.csr_pem(), ["127.0.0.1"], lifetime_s=-60.0)
    server = TlsCredentials(world.ca.certificate_pem, over, key.private_pem).ssl_server_context()
    async with listening(lambda writer: writer.write(b"x"), server) as address:
        failed = await failed_hop(address, world.client(world.ca, world.ca), reads_first=True)
    assert failed is not None
    assert failed.hop == "clock"
    assert failed.reason.endswith("is not valid by this machine's clock (certificate has expired)")
    assert isinstance(failed.as_error("no session"), ClockWrong)


async def test_a_certificate_that_the_coordinator_rejects(world: World) -> None:
    async with listening(lambda writer: writer.write(b"x"), world.server) as address:
        failed = await failed_hop(address, world.client(world.ca, world.other), reads_first=True)
    assert failed is not None
    assert failed.hop == "certificate"
    assert "rejects our certificate" in failed.reason


async def test_a_way_on_which_everything_works(world: World) -> None:
    async with listening(lambda writer: writer.write(b"x"), world.server) as address:
        assert await failed_hop(address, world.client(world.ca, world.ca), reads_first=True) is None


def test_the_error_names_the_hop() -> None:
    error = HopFailed("connection", "run.example:7400", "192.0.2.1:7400 refuses the connection").as_error("no session")
    assert isinstance(error, Unreachable)
    assert error.cause == "connection of run.example:7400: 192.0.2.1:7400 refuses the connection"
    assert "firewall" in error.fix
