"""Test who gets through to the core over TLS, and whom a gateway takes for the core."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import cast

import pytest
from structlog.testing import capture_logs

from coordinator.link import frames
from coordinator.link.connection import LinkConnection
from coordinator.link.dialler import LinkDialler
from coordinator.link.gateway_end import RemoteCore
from coordinator.link.listener import GatewayListener, host_and_port
from coordinator.rpc.core_link import LocalCore
from rollcast.runtime.errors import PortInUse, Unreachable
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.identity.tls import TlsCredentials, new_tls_key
from rollcast.wire.ids import Role, RunId
from tests.coordinator.link.ends import SETTINGS, WAIT_S, RecordingCore, hello, until

RUN = RunId("run")


@pytest.fixture
def issued(tmp_path: Path) -> Callable[[Role], TlsCredentials]:
    """Return what issues credentials of one run."""
    authority = RunCA.create(tmp_path / "ca", RUN)

    def issue(role: Role) -> TlsCredentials:
        key, peer_id = new_tls_key(), Identity.generate().peer_id
        if role == "coordinator":
            certificate = authority.issue_coordinator(key.csr_pem(), [])
        else:
            certificate = authority.issue(key.csr_pem(), peer_id=peer_id, role=role, lifetime_s=60.0)
        return TlsCredentials(authority.certificate_pem, certificate, key.private_pem)

    return issue


def listener() -> GatewayListener:
    return GatewayListener(cast(LocalCore, RecordingCore()), SETTINGS)


def dialler(core: RemoteCore, address: str, credentials: TlsCredentials | None) -> LinkDialler:
    async def tls() -> object:
        assert credentials is not None
        return credentials.ssl_client_context(), RUN

    return LinkDialler(core, [address], tls, 0.0, Random(0))  # type: ignore[arg-type]


async def no_tls() -> tuple[ssl.SSLContext, RunId]:
    raise AssertionError("a Unix socket has no TLS")


async def test_the_reason_at_each_of_two_addresses_is_logged_once(tmp_path: Path) -> None:
    core = RemoteCore(hello, lambda _: None)
    addresses = [str(tmp_path / "one"), str(tmp_path / "two" / "socket")]
    (tmp_path / "one").write_text("no socket")
    dialling = asyncio.create_task(LinkDialler(core, addresses, no_tls, 0.5, Random(0)).run())
    with capture_logs() as lines, pytest.raises(Unreachable):
        await dialling
    assert [line["address"] for line in lines] == addresses
    assert len({line["reason"] for line in lines}) == 2


def test_a_path_has_a_slash() -> None:
    assert [host_and_port(one) for one in ("./gateways", "/run/x:1", "[::1]:7500", "core.example:7500")] == [
        None,
        None,
        ("::1", 7500),
        ("core.example", 7500),
    ]


async def test_a_gateway_and_no_other_member_gets_through(issued: Callable[[Role], TlsCredentials]) -> None:
    listens = listener()
    await listens.listen("127.0.0.1:0", issued("coordinator").ssl_server_context())
    readied: list[object] = []
    core = RemoteCore(hello, readied.append)
    dialling = asyncio.create_task(dialler(core, listens.address, issued("gateway")).run())
    await until(lambda: bool(readied))
    assert listens.sessions() == {"west": 0}
    lost: list[str] = []
    peer = LinkConnection(lambda body: None, lost.append)
    host, port = host_and_port(listens.address) or ("", 0)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: peer, host, port, ssl=issued("peer").ssl_client_context())
    await until(lambda: bool(lost))
    assert listens.sessions() == {"west": 0}
    await listens.close(over="finished")
    async with asyncio.timeout(WAIT_S):
        assert await core.over == "finished"
        with pytest.raises(Unreachable):
            await dialling


async def test_frames_of_several_tls_records_arrive_whole(issued: Callable[[Role], TlsCredentials]) -> None:
    """A record holds 16 KiB; those that have arrived together are read one after another into one buffer."""
    bodies: list[bytes] = []
    lost: list[str] = []
    received = LinkConnection(bodies.append, lost.append)
    loop, tls = asyncio.get_running_loop(), issued("coordinator").ssl_server_context()
    server = await loop.create_server(lambda: received, "127.0.0.1", 0, ssl=tls)
    address = server.sockets[0].getsockname()
    sending = LinkConnection(bodies.append, lost.append)
    await loop.create_connection(lambda: sending, *address, ssl=issued("gateway").ssl_client_context())
    sent = [frames.Close(number, os.urandom(30_000).hex(), False) for number in range(20)]
    for item in sent:
        sending.send(item)

    def items() -> list[frames.ToCore]:
        return [item for body in bodies for item in frames.items_to_core(body) if item != frames.Beat()]

    await until(lambda: bool(lost) or len(items()) == len(sent))
    assert (items(), lost) == (sent, [])
    sending.end("enough")
    await until(lambda: bool(lost))
    server.close()
    await server.wait_closed()


async def test_a_gateway_takes_no_peer_for_the_core(issued: Callable[[Role], TlsCredentials]) -> None:
    impostor = listener()
    await impostor.listen("127.0.0.1:0", issued("peer").ssl_server_context())
    with pytest.raises(Unreachable) as caught:
        await dialler(RemoteCore(hello, lambda ready: None), impostor.address, issued("gateway")).run()
    assert "not the run's coordinator" in caught.value.cause
    await impostor.close(over="")


async def test_only_this_user_may_connect_to_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issued: Callable[[Role], TlsCredentials]
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has a limit
    left = socket.socket(socket.AF_UNIX)
    left.bind("./gateways")  # as a killed process leaves it
    left.close()
    listens, context = listener(), issued("coordinator").ssl_server_context()
    await listens.listen("./gateways", context)
    assert stat.S_IMODE(os.stat("./gateways").st_mode) == 0o600
    readied: list[object] = []
    core = RemoteCore(hello, readied.append)
    dialling = asyncio.create_task(dialler(core, "./gateways", None).run())
    await until(lambda: bool(readied))
    await listens.close(over="")
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(Unreachable, match="no coordinator at"):
            await dialling
    assert not os.path.exists("./gateways")  # noqa: ASYNC240
    assert not core.over.done()


async def test_an_address_that_cannot_be_bound_is_named(issued: Callable[[Role], TlsCredentials]) -> None:
    first, second, context = listener(), listener(), issued("coordinator").ssl_server_context()
    await first.listen("127.0.0.1:0", context)
    with pytest.raises(PortInUse) as caught:
        await second.listen(first.address, context)
    assert "gateways.listen" in caught.value.fix
    with pytest.raises(PortInUse, match="cannot listen on"):
        await second.listen("./missing/gateways", context)
    await first.close(over="")


async def test_a_silent_core_is_left_once_another_one_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.link.connection.BEAT_S", 0.05)
    monkeypatch.setattr("coordinator.link.connection.SILENT_BEATS", 1000)  # the link itself lasts
    monkeypatch.setattr("coordinator.link.dialler.SILENT_S", 0.1)
    monkeypatch.setattr("coordinator.link.dialler.WATCH_S", 0.02)
    silent, leads = str(tmp_path / "silent"), str(tmp_path / "leads")
    first = listener()
    await first.listen(silent, ssl.create_default_context())
    readied: list[object] = []
    core = RemoteCore(hello, readied.append)

    async def tls() -> tuple[ssl.SSLContext, RunId]:
        raise AssertionError("both are Unix sockets")

    dialling = asyncio.create_task(LinkDialler(core, [silent, leads], tls, WAIT_S, Random(0)).run())
    await until(lambda: bool(readied))
    (end,) = first._ends
    end.link._beat_timer.cancel()  # type: ignore[union-attr]  # as of a frozen process
    await until(lambda: core._link is not None and core._link.silent_s > 0.3)
    assert len(readied) == 1, "no other core listens yet"
    second = listener()
    await second.listen(leads, ssl.create_default_context())
    await until(lambda: len(readied) == 2)
    assert second.sessions() == {"west": 0}
    assert not dialling.done()
    dialling.cancel()
    await asyncio.gather(dialling, return_exceptions=True)
    for one in (first, second):
        await one.close("")
