"""What is asked of asyncio's own TLS; tests/wire/links/test_stream.py has connections that are taken away from it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rollcast.wire.links.raw_tls import shrink
from tests.peer.links.link_run import LinkRun


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


async def test_without_tls_there_is_nothing_to_give_back() -> None:
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        shrink(writer.transport)
        writer.close()
