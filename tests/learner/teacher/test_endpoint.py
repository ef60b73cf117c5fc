"""Test the client of a teacher's server against one on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from learner.config import TeacherConfig
from learner.objective.config import ObjectiveConfig
from learner.teacher import endpoint
from learner.teacher.endpoint import LOGPROB_MIN, TeacherEndpoint, laid_out
from learner.training.packing import pack
from rollcast.runtime.errors import ConfigError, MalformedMessage, RollcastError, Unreachable
from tests.learner.tiny import tiny_row

ROWS = [tiny_row(0, (4, 5, 1), 0.0), tiny_row(1, (6, 1), 0.0)]
Answer = Callable[[dict[str, Any]], web.Response]


def scores(body: dict[str, Any]) -> web.Response:
    """Answer as vLLM does; the log-probability of token t is -t / 10, and that of token 1 is 0's."""
    scored = [{str(token): {"logprob": -token / 10 if token > 1 else -9999.0, "rank": 1}} for token in body["prompt"]]
    return web.json_response({"choices": [{"prompt_logprobs": [None, *scored[1:]]}]})


async def score(answer: Answer, **settings: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the scores of ROWS and the requests that the server had."""
    asked: list[dict[str, Any]] = []

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(body | {"key": request.headers.get("Authorization", "")})
        return answer(body)

    app = web.Application()
    app.router.add_post("/v1/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    client = TeacherEndpoint(TeacherConfig.model_validate({"endpoint": f"http://127.0.0.1:{port}/v1"} | settings))
    try:
        return await client.score(ROWS), asked
    finally:
        await client.close()
        await runner.cleanup()


async def test_each_rollout_is_scored_as_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    found, asked = await score(scores, model="big", key_file=tmp_path / "key", concurrency=1)
    np.testing.assert_allclose(found[0], [0.0, -0.3, -0.4, -0.5, LOGPROB_MIN], rtol=1e-6)
    assert asked[0]["prompt"] == [2, 3, 4, 5, 1]
    assert (asked[0]["model"], asked[0]["prompt_logprobs"], asked[0]["key"]) == ("big", 0, "Bearer secret")
    packed = pack(ROWS, time=10, objective=ObjectiveConfig(), completion_tokens_max=4, shared=True)
    placed = laid_out(packed, found)
    for place, own in zip(packed.places, found, strict=True):
        np.testing.assert_array_equal(placed[place], own)


async def test_a_busy_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_FIRST_PAUSE_S", 0.0)
    left = [503, 429]
    found, asked = await score(lambda body: web.Response(status=left.pop()) if left else scores(body), concurrency=1)
    assert (len(found), len(asked)) == (2, 4)


async def test_a_server_that_stays_busy_is_named_with_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "backoff_delays_s", lambda *_, **__: [0.0])  # as if the time were over then
    with pytest.raises(Unreachable) as caught:
        await score(lambda body: web.Response(status=503, text="loading the model"))
    assert "no answer within 300 s" in caught.value.cause
    assert "status 503: loading the model" in caught.value.cause


async def test_the_configured_time_is_the_only_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP library's own limit of 300 s ended longer waits."""
    limits = []
    made = aiohttp.ClientSession

    def session(**given: Any) -> aiohttp.ClientSession:
        opened = made(**given)
        limits.append(opened.timeout.total)
        return opened

    monkeypatch.setattr(endpoint.aiohttp, "ClientSession", session)
    await score(scores)
    assert limits == [None]


@pytest.mark.parametrize(
    ("answer", "kind", "what"),
    [
        (lambda body: web.Response(status=404, text="no such model"), Unreachable, "no such model"),
        (lambda body: web.json_response({"choices": [{"text": "4"}]}), MalformedMessage, "prompt_logprobs"),
        (lambda body: web.json_response({"choices": [{"prompt_logprobs": [None]}]}), MalformedMessage, "1 tokens of"),
        (lambda body: web.Response(body=b" " * (2 << 20)), MalformedMessage, ""),
    ],
)
async def test_other_answers_end_in_errors(answer: Answer, kind: type[RollcastError], what: str) -> None:
    with pytest.raises(kind) as caught:
        await score(answer)
    assert what in caught.value.cause


async def test_a_server_that_never_answers_is_given_up() -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    handle: Callable[..., Awaitable[None]] = connected
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = TeacherEndpoint(TeacherConfig(endpoint=f"http://127.0.0.1:{port}/v1", timeout_s=0.05))
    with pytest.raises(Unreachable, match="did not score") as caught:
        await client.score(ROWS)
    assert "no answer within 0.05 s" in caught.value.cause
    await client.close()
    server.close()


def test_a_key_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key file"):
        TeacherEndpoint(TeacherConfig(endpoint="http://teacher/v1", key_file=tmp_path / "none"))
