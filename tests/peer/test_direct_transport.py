"""The direct transport: the conformance suite, and what only it can get wrong."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from peer.config import LinkConfig
from peer.direct_transport import DirectTransport
from peer.transport import Admission, ChunkTransport, Link, LinkLimits
from rollcast.runtime.errors import ConfigError, PortInUse, RollcastError
from rollcast.wire.ids import RunId
from rollcast.wire.tls import TlsCredentials
from tests.peer.link_run import LinkRun
from tests.peer.transport_conformance import LIMITS, TransportConformance, anyone


class TestDirectTransport(TransportConformance):
    def make(self, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits) -> ChunkTransport:
        return DirectTransport(LinkConfig(), credentials, run_id, admit, limits)

    async def test_small_frames_do_not_wait(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            for end in await pair.link():
                sock = end._transport.get_extra_info("socket")  # type: ignore[attr-defined]
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0

    async def test_links_speak_tls_1_3(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, _ = await pair.link()
            tls = dialled._transport.get_extra_info("ssl_object")  # type: ignore[attr-defined]
            assert tls.version() == "TLSv1.3"

    async def test_a_member_without_a_certificate_gets_no_answer(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            host, port = pair.address.split(":")
            # TLS 1.3: the client learns of the refusal with its first read.
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            writer.write(b"POST /rollcast/link/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.transport.abort()

    async def test_a_request_that_drips_in_is_cut_off(self, tmp_path: Path) -> None:
        run = LinkRun(tmp_path)
        peer_id, credentials = run.member("peer")
        limits = LinkLimits(handshake_timeout_s=0.2)
        listener = DirectTransport(LinkConfig(), credentials, run.run_id, anyone, limits)
        host, port = (await listener.start(_nobody)).split(":")
        try:
            async with asyncio.timeout(5.0):
                member = run.credentials(peer_id, "peer").ssl_client_context()
                reader, writer = await asyncio.open_connection(host, int(port), ssl=member)
                writer.write(b"POST /rollcast/li")
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
                writer.transport.abort()
        finally:
            await listener.close()


async def _nobody(_link: Link) -> None:
    raise AssertionError("no link was opened")


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = LinkConfig(port=taken.getsockname()[1])
        transport = DirectTransport(config, run.member("peer")[1], run.run_id, anyone, LIMITS)
        with pytest.raises(PortInUse):
            await transport.start(_nobody)
        await transport.close()


@pytest.mark.parametrize(
    ("config", "address"),
    [(LinkConfig(advertise="none"), ""), (LinkConfig(advertise="example.org:7"), "example.org:7")],
)
async def test_the_advertised_address_is_the_configured_one(tmp_path: Path, config: LinkConfig, address: str) -> None:
    run = LinkRun(tmp_path)
    transport = DirectTransport(config, run.member("peer")[1], run.run_id, anyone)
    assert await transport.start(_nobody) == address
    await transport.close()


async def test_every_interface_needs_an_address_to_advertise(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    transport = DirectTransport(LinkConfig(host="0.0.0.0"), run.member("peer")[1], run.run_id, anyone)
    with pytest.raises(ConfigError):
        await transport.start(_nobody)
    await transport.close()


async def test_garbage_on_a_link_ends_it(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    peer_id, credentials = run.member("peer")
    listener = DirectTransport(LinkConfig(), credentials, run.run_id, anyone, LIMITS)
    host, port = (await listener.start(_nobody)).split(":")
    try:
        async with asyncio.timeout(5.0):
            member = run.credentials(peer_id, "peer").ssl_client_context()
            reader, writer = await asyncio.open_connection(host, int(port), ssl=member)
            head = "POST /rollcast/link/1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head.encode() + b"8\r\n\xff\xff\xff\xff\xff\xff\xff\xff\r\n")
            answer = await reader.read()
            assert b"200 OK" in answer
            assert b"RC305" in answer
            writer.transport.abort()
    except RollcastError:
        pytest.fail("the listener must deal with it")
    finally:
        await listener.close()
