from __future__ import annotations

import asyncio
import re
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollcast.runtime.errors import WrongKey
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import COORDINATOR_NAME, Caller, RunCA, TlsCredentials, caller_from_der, new_tls_key
from rollcast.wire.ids import PeerId, Role, RunId

RUN_ID = RunId("test-run")
PEER_ID = Identity.generate().peer_id


def member(ca: RunCA, role: Role = "peer", peer_id: PeerId = PEER_ID, lifetime_s: float = 600.0) -> TlsCredentials:
    key = new_tls_key()
    certificate = ca.issue(key.csr_pem(), peer_id=peer_id, role=role, lifetime_s=lifetime_s)
    return TlsCredentials(ca.certificate_pem, certificate, key.private_pem)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> RunCA:
    return RunCA.create(tmp_path_factory.mktemp("ca"), RUN_ID)


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> RunCA:
    return RunCA.create(tmp_path_factory.mktemp("other"), RUN_ID)


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Run a server that greets every client that passes the handshake, and record their certificates."""
    seen: list[bytes] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], seen


async def dial(port: int, context: ssl.SSLContext, server_hostname: str = "") -> tuple[bytes, bytes, str]:
    """Return the bytes that the server sends, its certificate, and the TLS version."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=server_hostname or "127.0.0.1"
        )
        try:
            tls = writer.get_extra_info("ssl_object")
            return await reader.read(), tls.getpeercert(binary_form=True), tls.version()
        finally:
            writer.close()


async def test_members_of_a_run_know_each_other(ca: RunCA) -> None:
    server, client = member(ca, "origin"), member(ca)
    async with listening(server.ssl_server_context()) as (port, seen):
        greeting, certificate, version = await dial(port, client.ssl_client_context())
    assert (greeting, version) == (b"hello", "TLSv1.3")
    assert caller_from_der(certificate) == Caller(RUN_ID, "origin", PEER_ID) == server.caller
    assert [caller_from_der(der) for der in seen] == [client.caller]


async def test_processes_without_a_certificate_of_the_run_are_refused(ca: RunCA, other_ca: RunCA) -> None:
    stranger = member(other_ca)
    trusting = TlsCredentials(ca.certificate_pem, stranger.certificate_pem, stranger.private_key_pem)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(cadata=ca.certificate_pem.decode())
    async with listening(member(ca, "origin").ssl_server_context()) as (port, seen):
        for context in (trusting.ssl_client_context(), bare):
            with pytest.raises(OSError, match=r"(?i)alert|reset|certificate"):  # noqa: PT012
                greeting, _, _ = await dial(port, context)
                raise OSError("reset without an alert") if not greeting else AssertionError(greeting)
    assert seen == []


async def test_a_server_of_another_run_is_refused(ca: RunCA, other_ca: RunCA) -> None:
    async with listening(member(other_ca, "origin").ssl_server_context()) as (port, seen):
        with pytest.raises(ssl.SSLCertVerificationError):
            await dial(port, member(ca).ssl_client_context())
    assert seen == []


async def test_older_tls_is_refused(ca: RunCA) -> None:
    old = member(ca).ssl_client_context()
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(member(ca, "origin").ssl_server_context()) as (port, seen):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await dial(port, old)
    assert seen == []


async def test_expired_certificates_are_refused(ca: RunCA) -> None:
    expired = member(ca, lifetime_s=-60.0)
    assert expired.valid_for_s < 0
    async with listening(expired.ssl_server_context()) as (port, _):
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await dial(port, member(ca).ssl_client_context())


async def test_only_coordinator_and_gateways_answer_to_its_name(ca: RunCA) -> None:
    key, hosts = new_tls_key(), ["10.1.2.3", "train.example", "localhost"]
    context = ssl.create_default_context(cadata=ca.certificate_pem.decode())
    for certificate, caller in (
        (ca.issue_coordinator(key.csr_pem(), hosts), Caller(RUN_ID, "coordinator", PeerId("coordinator"))),
        (ca.issue_gateway(key.csr_pem(), PEER_ID, hosts), Caller(RUN_ID, "gateway", PEER_ID)),
    ):
        server = TlsCredentials(ca.certificate_pem, certificate, key.private_pem)
        for name in (COORDINATOR_NAME, "127.0.0.1", "train.example"):
            async with listening(server.ssl_server_context(ask_client=False)) as (port, _):
                _, der, _ = await dial(port, context, name)
        assert caller_from_der(der) == caller
    async with listening(member(ca).ssl_server_context(ask_client=False)) as (port, _):
        with pytest.raises(ssl.SSLCertVerificationError, match="match"):
            await dial(port, context, COORDINATOR_NAME)


def test_credentials_are_saved_in_one_private_file(ca: RunCA, tmp_path: Path) -> None:
    credentials = member(ca)
    credentials.save(tmp_path / "state")
    (path,) = (tmp_path / "state").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TlsCredentials.load(tmp_path / "state") == credentials
    assert 590 < credentials.valid_for_s <= 600
    assert "PRIVATE" not in repr(credentials)


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "reordered"])
def test_damaged_credentials_are_refused(ca: RunCA, tmp_path: Path, damage: str) -> None:
    credentials = member(ca)
    path = tmp_path / "credentials.pem"
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(credentials.private_key_pem + credentials.certificate_pem)
        case "reordered":
            path.write_bytes(credentials.private_key_pem + credentials.ca_pem + credentials.certificate_pem)
    with pytest.raises(WrongKey):
        TlsCredentials.load(tmp_path)


def test_a_key_of_another_certificate_is_refused(ca: RunCA, other_ca: RunCA) -> None:
    one, other = member(ca), member(other_ca)
    with pytest.raises(WrongKey):
        TlsCredentials(one.ca_pem, one.certificate_pem, other.private_key_pem).check()
    with pytest.raises(WrongKey):
        TlsCredentials(other.ca_pem, one.certificate_pem, one.private_key_pem).check()


def test_a_request_carries_no_names() -> None:
    from cryptography import x509

    request = x509.load_pem_x509_csr(new_tls_key().csr_pem())
    assert len(list(request.subject)) == 0
    assert re.match(r"-----BEGIN", new_tls_key().private_pem.decode())
