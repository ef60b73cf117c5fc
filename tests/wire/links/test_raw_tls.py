"""TLS records by themselves, and what is asked of asyncio's own TLS; tests/wire/links/test_stream.py has
connections that are taken away from it.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.wire.links.raw_tls import TlsRecords, shrink
from tests.peer.links.link_run import LinkRun


def record(plaintext_bytes: int) -> bytes:
    return struct.pack(">BHH", 23, 0x303, plaintext_bytes + 17) + bytes(plaintext_bytes + 17)


@given(st.lists(st.integers(1, 16384), min_size=1, max_size=6), st.data())
@settings(deadline=None, max_examples=60)
def test_never_more_is_waited_for_than_must_come(sizes: list[int], data: st.DataObject) -> None:
    """However records arrive, at least as many bytes are still missing as are waited for."""
    stream = b"".join(map(record, sizes))
    at = data.draw(st.integers(0, len(stream)))
    records = TlsRecords()
    for start in range(0, at, 7):
        records.feed(memoryview(stream)[start : min(start + 7, at)])
    complete, end = 0, 0  # plaintext of the records that have arrived
    for size in sizes:
        end += size + 22
        if end <= at:
            complete += size
    left = sum(sizes) - complete
    if left:
        assert 1 <= records.bytes_to_come(left) <= len(stream) - at
    assert records.bytes_to_come(0) >= 1


def test_full_records_are_waited_for_exactly() -> None:
    stream = record(16384) + record(16384) + record(100)
    records = TlsRecords()
    assert records.bytes_to_come(2 * 16384 + 100) == len(stream)
    for at in (1, 4, 5, 6, 16000, 16405):
        records = TlsRecords()
        records.feed(memoryview(stream)[:at])
        assert records.bytes_to_come(2 * 16384 + 100) == len(stream) - at
    assert records.bytes_to_come(0) == 1, "the rest of the first record: nothing can be decrypted before"


def test_openssl_makes_such_records(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    pipes = [ssl.MemoryBIO(), ssl.MemoryBIO()]
    client = run.member("peer")[1].ssl_client_context().wrap_bio(pipes[0], pipes[1])
    server = run.member("peer")[1].ssl_server_context().wrap_bio(pipes[1], pipes[0], server_side=True)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    try:
        client.read(1)
    except ssl.SSLWantReadError:
        assert not pipes[0].pending, "session tickets are read"
    payload = memoryview(bytes(65536))
    while len(payload):
        payload = payload[server.write(payload) :]
    expected = TlsRecords().bytes_to_come(65536)
    assert pipes[0].pending == expected


async def test_a_connection_that_gave_its_buffer_back_reads_on(tmp_path: Path) -> None:
    _, credentials = LinkRun(tmp_path).member("peer")
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shrink(writer.transport)
        for _ in range(2):
            lines.put_nowait(await reader.readline())
            shrink(writer.transport)
            assert not writer.transport._ssl_protocol._ssl_buffer  # type: ignore[attr-defined]
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0, ssl=credentials.ssl_server_context()) as server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=credentials.ssl_client_context())
        for line in (b"one\n", b"two" * 10_000 + b"\n"):
            writer.write(line)
            assert await lines.get() == line
        writer.close()
        await writer.wait_closed()


async def test_without_tls_no_memory_is_freed() -> None:
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        shrink(writer.transport)
        writer.close()
