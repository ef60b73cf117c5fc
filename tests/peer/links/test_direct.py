"""Test the direct transport: the conformance suite, and faults that only it can have."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from peer.config import LinkConfig
from peer.links.direct import DirectTransport
from peer.links.paths import kind_of
from peer.links.transport import Admission, ChunkTransport, Link, LinkLimits, LinkReceiver
from rollcast.runtime.errors import ClockWrong, ConfigError, PortInUse
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import RunId
from rollcast.wire.links.frames import LinkMessageFrame, encode_chunk, encode_message
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb
from tests.peer.links.link_ends import End
from tests.peer.links.link_run import LinkRun
from tests.peer.links.transport_conformance import LIMITS, TransportConformance, anyone
from tests.wire.links.raw_tls import REQUEST, RawTls

HASTY = LinkLimits(handshake_timeout_s=0.1)


class TestDirectTransport(TransportConformance):
    def make(
        self, identity: Identity, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits
    ) -> ChunkTransport:
        return DirectTransport(LinkConfig(), credentials, run_id, admit, limits)

    async def test_links_use_tls_1_3_and_are_measured(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            for end in await pair.ends():
                assert end.link._stream._tls._object.version() == "TLSv1.3"  # type: ignore[attr-defined]
                measured = end.link.measure()
                assert measured.rtt_s > 0
                assert measured.congestion_control


class TestDirectTransportOverIpv6(TransportConformance):
    def make(
        self, identity: Identity, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits
    ) -> ChunkTransport:
        return DirectTransport(LinkConfig(host="::1"), credentials, run_id, admit, limits)

    async def test_addresses_are_in_brackets_and_local(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            assert pair.address.startswith("[::1]:")
            assert kind_of(pair.address) == "lan"
            for end in await pair.ends():
                assert end.link.lan


async def test_one_listener_takes_links_over_ipv6_and_ipv4(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    peer_id, credentials = run.member("peer")
    config = LinkConfig(host="::", advertise="none")
    listener = DirectTransport(config, credentials, run.run_id, anyone, LIMITS)
    dialler = DirectTransport(LinkConfig(), run.member("peer")[1], run.run_id, anyone, LIMITS)
    accepted: asyncio.Queue[End] = asyncio.Queue()

    def accept(link: Link) -> LinkReceiver:
        end = End(link)
        accepted.put_nowait(end)
        return end

    try:
        assert await listener.start(accept) == ""
        for host in ("127.0.0.1", "[::1]", "localhost"):
            link = await dialler.dial(peer_id, f"{host}:{listener.port}")
            link.start(End(link))
            assert (await accepted.get()).link.lan, "an IPv4 address within an IPv6 one is what it is"
    finally:
        await dialler.close()
        await listener.close()


def nobody(_link: Link) -> LinkReceiver:
    raise AssertionError("no link was opened")


class Door:
    """A listening transport, and connections to it that no honest peer opens."""

    def __init__(self, run: LinkRun, address: str) -> None:
        self.run = run
        self.address = address
        self.callers: list[RawTls] = []

    async def connect(self, context: ssl.SSLContext | None = None) -> RawTls:
        context = context or self.run.member("peer")[1].ssl_client_context()
        self.callers.append(await RawTls.connect(self.address, context))
        return self.callers[-1]


@asynccontextmanager
async def door(folder: Path, limits: LinkLimits = LIMITS) -> AsyncIterator[Door]:
    run = LinkRun(folder)
    listener = DirectTransport(LinkConfig(), run.member("peer")[1], run.run_id, anyone, limits)
    at = Door(run, await listener.start(nobody))
    try:
        async with asyncio.timeout(5.0):
            yield at
    finally:
        for caller in at.callers:
            caller.close()
        await listener.close()


def hello(run_id: str = "run-1") -> bytes:
    return encode_message(pb.LinkMessage(hello=pb.LinkHello(protocol=range_to_pb(), run_id=run_id, software="x")))


async def test_a_caller_without_a_certificate_gets_no_answer(tmp_path: Path) -> None:
    async with door(tmp_path) as at:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        caller = await at.connect(context)
        await caller.write(REQUEST + b"\r\n")
        with suppress(ssl.SSLError, ConnectionError):
            assert await caller.rest() == b""


@pytest.mark.parametrize("request_bytes", [b"", b"GET /rollcast/li", REQUEST])
async def test_a_request_that_drips_in_is_cut_off(tmp_path: Path, request_bytes: bytes) -> None:
    async with door(tmp_path, HASTY) as at:
        caller = await at.connect()
        if request_bytes:
            await caller.write(request_bytes)
        with suppress(ConnectionError):
            assert await caller.rest() == b""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"403"),
        (REQUEST.replace(b"GET", b"POST") + b"Content-Length: 0\r\n\r\n", b"403"),
        (REQUEST.replace(b"link/2\r\n", b"link/9\r\n") + b"\r\n", b"403"),
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (REQUEST + b"X: " + b"y" * 100_000 + b"\r\n\r\n", b"400"),
    ],
)
async def test_other_requests_are_refused(tmp_path: Path, request_bytes: bytes, status: bytes) -> None:
    async with door(tmp_path) as at:
        caller = await at.connect()
        await caller.write(request_bytes)
        assert (await caller.rest()).split()[1] == status


async def test_a_hello_that_drips_in_is_cut_off(tmp_path: Path) -> None:
    async with door(tmp_path, LinkLimits(hello_timeout_s=0.1)) as at:
        caller = await at.connect()
        await caller.upgrade()
        await caller.write(hello()[:7])
        (answer,) = await caller.frames()
        assert isinstance(answer, LinkMessageFrame)
        assert "to greet" in answer.message.error.what


@pytest.mark.parametrize(
    "first", [b"\xff" * 64, b"".join(encode_chunk(1, 0, 0, b"x")), hello("run-2"), b"\1\xff\xff\xff\xff"]
)
async def test_a_caller_without_a_greeting_is_told_and_loses_the_link(tmp_path: Path, first: bytes) -> None:
    async with door(tmp_path) as at:
        caller = await at.connect()
        await caller.upgrade()
        await caller.write(first)
        (answer,) = await caller.frames()
        assert isinstance(answer, LinkMessageFrame)
        assert answer.message.error.code in ("RC305", "RC302")


async def test_bytes_sent_before_the_upgrade_open_nothing(tmp_path: Path) -> None:
    """Such bytes may be lost or refused, but the link must not start in the middle of a frame."""
    async with door(tmp_path, LinkLimits(hello_timeout_s=1.0)) as at:
        caller = await at.connect()
        await caller.write(REQUEST + b"\r\n" + hello())
        answer = await caller.rest()
        assert hello()[5:] not in answer


async def test_more_links_than_allowed_are_refused(tmp_path: Path) -> None:
    async with door(tmp_path, LinkLimits(links_most=1, hello_timeout_s=1.0)) as at:
        callers = [await at.connect() for _ in range(2)]
        await callers[0].upgrade()
        await callers[1].write(REQUEST + b"\r\n")
        assert b"too many links" in await callers[1].rest()


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = LinkConfig(port=taken.getsockname()[1])
        transport = DirectTransport(config, run.member("peer")[1], run.run_id, anyone, LIMITS)
        with pytest.raises(PortInUse):
            await transport.start(nobody)
        await transport.close()


@pytest.mark.parametrize(
    ("config", "address"),
    [(LinkConfig(advertise="none"), ""), (LinkConfig(advertise="example.org:7"), "example.org:7")],
)
async def test_the_advertised_address_is_the_configured_one(tmp_path: Path, config: LinkConfig, address: str) -> None:
    run = LinkRun(tmp_path)
    transport = DirectTransport(config, run.member("peer")[1], run.run_id, anyone)
    assert await transport.start(nobody) == address
    await transport.close()


@pytest.mark.parametrize("config", [LinkConfig(host="0.0.0.0"), LinkConfig(congestion="warp")])
async def test_settings_that_cannot_be_applied_are_named(tmp_path: Path, config: LinkConfig) -> None:
    run = LinkRun(tmp_path)
    transport = DirectTransport(config, run.member("peer")[1], run.run_id, anyone)
    with pytest.raises(ConfigError):
        await transport.start(nobody)
    await transport.close()


async def test_a_certificate_that_is_over_by_this_machines_clock_is_not_called_a_strangers(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    peer_id, _ = run.member("peer")
    over = DirectTransport(LinkConfig(), run.credentials(peer_id, "peer", -60.0), run.run_id, anyone)
    dialler = DirectTransport(LinkConfig(), run.member("peer")[1], run.run_id, anyone)
    address = await over.start(_unused)
    try:
        with pytest.raises(ClockWrong, match="not valid by this machine's clock"):
            await dialler.dial(peer_id, address)
    finally:
        await dialler.close()
        await over.close()


def _unused(_link: Link) -> LinkReceiver:
    raise AssertionError("a link was opened")
