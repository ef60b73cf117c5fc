"""Test the stream of views: one text for all readers, none without readers, an end for slow or revoked readers.

A view is made once for all requests within a short time.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coordinator.http import health, stream
from coordinator.http.health import CachedJson
from coordinator.http.routes import JsonText, Topic
from coordinator.http.stream import GZIP_HEADER, compressed, message_of
from tests.coordinator.http.serving import Given, Served, served


class Made:
    """Counts how often a topic's text is made."""

    def __init__(self) -> None:
        self.times = 0

    def make(self) -> JsonText:
        self.times += 1
        return JsonText(json.dumps({"number": self.times}))


async def next_event(response: aiohttp.ClientResponse) -> tuple[str, Any]:
    name = ""
    while True:
        line = (await response.content.readline()).decode().rstrip("\n")
        assert line or name or not response.content.at_eof()
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return name, json.loads(line.removeprefix("data: "))


async def nobody_listens(page: Served) -> None:
    async with asyncio.timeout(10):
        while page.app.hub.readers:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_all_readers_get_the_same_text_made_once(tmp_path: Path) -> None:
    one, other = Made(), Made()
    given = Given(topics=[Topic("one", one.make), Topic("other", other.make)])
    async with served(tmp_path, given) as page:
        url = f"{page.url}/api/v1/stream?topics="
        await asyncio.sleep(0.15)
        assert one.times == 0  # no reader listens
        async with page.client.get(url + "one") as first, page.client.get(url + "one") as second:
            assert first.content_type == "text/event-stream"
            heard = [[await next_event(reader) for _ in range(4)] for reader in (first, second)]
            assert set(map(str, heard[0])) & set(map(str, heard[1]))
            assert [event["number"] for _, event in heard[0]] == [1, 2, 3, 4]
            assert one.times <= 8
        assert other.times == 0  # not requested
        await nobody_listens(page)
        made = one.times
        await asyncio.sleep(0.2)
        assert one.times <= made + 1


async def test_stream_ends_with_the_server(tmp_path: Path) -> None:
    async with served(tmp_path) as page, page.client.get(f"{page.url}/api/v1/stream?topics=status") as response:
        assert (await next_event(response))[1]["step"] == 87
        stopping = asyncio.create_task(page.server.stop())
        await asyncio.wait_for(response.content.read(), 5)
        await stopping


async def test_a_late_reader_gets_the_newest_at_once_and_its_own_first(tmp_path: Path) -> None:
    numbers = count()
    changes = Topic(
        "changes", lambda: JsonText(str(next(numbers))) if not next(numbers) % 2 else None, lambda: JsonText('"all"')
    )
    given = Given(topics=[Topic("one", Made().make), changes], stream_interval_s=0.3)
    async with served(tmp_path, given) as page, page.client.get(f"{page.url}/api/v1/stream?topics=one") as first:
        await next_event(first)
        async with page.client.get(f"{page.url}/api/v1/stream?topics=changes,one") as late:
            assert await next_event(late) == ("changes", "all")
            assert (await next_event(late))[0] == "one"


async def test_idle_stream_sends_comments(tmp_path: Path) -> None:
    given = Given(topics=[Topic("quiet", lambda: None)], stream_interval_s=0.01)
    async with served(tmp_path, given) as page, page.client.get(f"{page.url}/api/v1/stream?topics=quiet") as response:
        lines = [await response.content.readline() for _ in range(4)]
        assert lines == [b"retry: 1000\n", b"\n", b": nothing new\n", b"\n"]


@pytest.mark.parametrize("query", ["", "?topics=", "?topics=nothing", "?topics=status,nothing"])
async def test_unknown_topics_are_refused(tmp_path: Path, query: str) -> None:
    async with served(tmp_path) as page:
        assert (await page.get(f"/api/v1/stream{query}"))[0] == 400


async def test_readers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "READERS_MAX", 1)
    async with served(tmp_path) as page, page.client.get(f"{page.url}/api/v1/stream?topics=status") as first:
        await first.content.readline()
        assert (await page.get("/api/v1/stream?topics=status"))[0] == 503


async def test_a_reader_that_does_not_read_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WRITE_DEADLINE_S", 0.3)
    flood = JsonText('"' + "x" * 4_000_000 + '"')
    async with served(tmp_path, Given(topics=[Topic("flood", lambda: flood)], stream_interval_s=0.01)) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.server.port)
        writer.write(b"GET /api/v1/stream?topics=flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        assert page.app.hub.readers == 1
        await nobody_listens(page)
        writer.close()


async def test_a_revoked_token_ends_its_streams(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        _, made = await page.post("/api/v1/tokens", {"name": "ann", "access": "viewer"})
        headers = {"Authorization": f"Bearer {made['token']}"}
        async with page.client.get(f"{page.url}/api/v1/stream?topics=status", headers=headers) as response:
            await next_event(response)
            await page.post(f"/api/v1/tokens/{made['id']}/revoke", {})
            await asyncio.wait_for(response.content.read(), 5)


async def test_a_view_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    def broken() -> JsonText:
        raise KeyError("oops")

    given = Given(topics=[Topic("broken", broken), Topic("one", Made().make)])
    async with served(tmp_path, given) as page:
        response = await page.client.get(f"{page.url}/api/v1/stream?topics=broken,one")
        assert [(await next_event(response))[0] for _ in range(2)] == ["one", "one"]
        response.close()


def test_parts_compressed_apart_make_one_stream() -> None:
    messages = [message_of("a", JsonText('{"x":\n 1}')), message_of("b", JsonText("[" + "1," * 5000 + "1]"))]
    parts = [compressed(message) for message in messages]
    for order in ([0, 1], [1, 0], [1, 1, 0]):
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        unpacked = unpacker.decompress(GZIP_HEADER)
        for place in order:
            unpacked += unpacker.decompress(parts[place])
        assert unpacked == b"".join(messages[place] for place in order)
    assert len(parts[1]) < len(messages[1]) / 10
    assert messages[0].count(b"\n") == 3


async def test_cached_json_is_reused_for_a_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "KEPT_S", 0.05)
    made = 0

    def make() -> dict[str, float]:
        nonlocal made
        made += 1
        return {"made": made, "none": float("nan")}

    text = CachedJson(make)
    assert [text.text(), text.text()] == ['{"made":1,"none":null}'] * 2
    await asyncio.sleep(0.06)
    assert text.text() == '{"made":2,"none":null}'
