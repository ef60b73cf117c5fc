from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.joining.pinned_http import json_object, read_bounded

URL = "http://here/api"


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"{", b"\xff", b"[" * 100_000])
def test_only_objects_are_answers(body: bytes) -> None:
    with pytest.raises(MalformedMessage, match="does not answer like a coordinator") as raised:
        json_object(body, URL, fix="look there")
    assert raised.value.fix == "look there"


def test_an_object_is_read() -> None:
    assert json_object(b'{"a": 1}', URL, fix="") == {"a": 1}


async def test_a_body_that_is_too_long_is_not_read_to_its_end() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=bytes(1000))

    application = web.Application()
    application.router.add_get("/", answer)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        async with session.get(server.make_url("/")) as response:
            assert await read_bounded(response, 1000) == bytes(1000)
        async with session.get(server.make_url("/")) as response:
            with pytest.raises(MalformedMessage, match="too long"):
                await read_bounded(response, 999)
