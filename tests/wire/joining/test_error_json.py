"""Test errors as JSON, and HTTP answers that no coordinator sent."""

from __future__ import annotations

import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import JoinRefused, MalformedMessage, RollcastError, WrongKey
from rollcast.wire.joining.error_json import error_from_json, error_to_json
from rollcast.wire.joining.pinned_http import json_object, read_bounded


@pytest.mark.parametrize("kind", [JoinRefused, WrongKey, RollcastError])
def test_errors_keep_their_class_and_words(kind: type[RollcastError]) -> None:
    error = error_from_json(error_to_json(kind("what", cause="cause", fix="fix")))
    assert type(error) is kind
    assert error is not None
    assert (error.what, error.cause, error.fix) == ("what", "cause", "fix")


def test_errors_from_the_network_have_no_control_characters_and_are_short() -> None:
    error = error_from_json(json.dumps({"code": "RC301", "what": "\x1b[2Jhello\n" + "x" * 10_000}))
    assert error is not None
    assert error.what.startswith(" [2Jhello x")
    assert len(error.what) == 1024
    assert len(error_to_json(JoinRefused("x" * 10_000))) < 1200


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["code", "what", "cause", "fix"]), inner),
    max_leaves=6,
)


@given(JSON_VALUES.map(json.dumps) | st.text() | st.binary() | st.just("[" * 100_000))
@settings(deadline=None, max_examples=100)
def test_other_texts_are_no_error(text: str | bytes) -> None:
    assert error_from_json(text) is None


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
