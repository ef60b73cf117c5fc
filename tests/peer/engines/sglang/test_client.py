"""Test what the client does when a server is away, slow, refuses, or sends too much."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from pydantic import SecretStr, ValidationError

from peer.engines.sglang import client as client_module
from peer.engines.sglang.answers import Asked
from peer.engines.sglang.client import SglangClient
from peer.engines.sglang.config import SglangConfig
from rollcast.runtime.errors import MalformedMessage, ModelError, Unreachable, WaitTimedOut
from rollcast.wire.rollouts import Sampling
from tests.peer.engines.sglang.fake_server import FakeServer, fake_server

ASKED = [Asked((5, 6), 3, Sampling(1.0, 8, (1,)), 7)]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_FIRST_RETRY_S", 0.0)


@pytest.fixture
async def served() -> AsyncIterator[tuple[FakeServer, SglangClient]]:
    async with fake_server() as (fake, url):
        client = SglangClient(SglangConfig(url=url + "/", api_key=SecretStr("secret")), Random(1))
        yield fake, client
        fake.may_answer.set()
        await client.close()


async def test_a_server_that_starts_is_waited_for(served: tuple[FakeServer, SglangClient]) -> None:
    fake, client = served
    fake.statuses = [503, 502]
    assert await client.weights() == "default"
    assert fake.authorization == {"Bearer secret"}


async def test_a_server_that_stays_away_is_an_error(served: tuple[FakeServer, SglangClient]) -> None:
    fake, client = served
    fake.statuses = [503]
    for url, cause in ((client._url, "HTTP status 503"), ("http://127.0.0.1:1", "Cannot connect")):
        impatient = SglangClient(SglangConfig(url=url, away_timeout_s=0.0))
        with pytest.raises(Unreachable, match="cannot reach the SGLang server") as caught:
            await impatient.weights()
        assert cause in caught.value.cause
        await impatient.abort_all()
        await impatient.close()


async def test_a_slow_answer_ends_with_a_deadline(served: tuple[FakeServer, SglangClient]) -> None:
    fake, client = served
    fake.may_answer.clear()
    hurried = SglangClient(SglangConfig(url=client._url, answer_timeout_s=0.01))
    with pytest.raises(WaitTimedOut, match="/generate of the SGLang server"):
        await hurried.generate(ASKED, "default", 32)
    await hurried.close()


async def test_an_answer_that_is_too_long_is_refused(served: tuple[FakeServer, SglangClient]) -> None:
    fake, client = served
    fake.answers = ["x" * 100_000]
    with pytest.raises(MalformedMessage, match="too long"):
        await client.generate(ASKED, "default", 32)


async def test_a_refusal_to_generate_has_the_servers_reason(served: tuple[FakeServer, SglangClient]) -> None:
    fake, client = served
    fake.statuses = [400]
    with pytest.raises(MalformedMessage, match="refused to generate") as caught:
        await client.generate(ASKED, "default", 32)
    assert "as the test wants" in caught.value.cause


async def test_a_server_without_labels_of_weights_is_refused(served: tuple[FakeServer, SglangClient]) -> None:
    fake, client = served
    fake.statuses = [404]
    with pytest.raises(MalformedMessage, match="does not say which weights it has"):
        await client.weights()


def a_model(folder: Path) -> Path:
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    return folder


async def test_a_busy_cache_is_flushed_a_moment_later(served: tuple[FakeServer, SglangClient], tmp_path: Path) -> None:
    fake, client = served
    fake.flushes_refused = 2
    await client.put_weights(a_model(tmp_path), "new")
    assert (fake.version, fake.paused) == ("new", False)
    fake.flushes_refused = 5
    with pytest.raises(Unreachable, match="refused /flush_cache"):
        await client.put_weights(tmp_path, "newer")
    assert fake.paused


async def test_a_router_that_asks_another_server_is_noticed(
    served: tuple[FakeServer, SglangClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, client = served

    async def of_another() -> str:
        return "default"

    monkeypatch.setattr(client, "weights", of_another)
    with pytest.raises(ModelError, match="does not have the weights that it was given"):
        await client.put_weights(a_model(tmp_path), "new")
    assert fake.paused


async def test_a_server_that_does_not_pause_gets_no_weights(
    served: tuple[FakeServer, SglangClient], tmp_path: Path
) -> None:
    fake, client = served
    fake.statuses = [401]
    with pytest.raises(Unreachable, match="refused /pause_generation"):
        await client.put_weights(a_model(tmp_path), "new")
    assert [path for path, _ in fake.requests] == ["/pause_generation"]


def test_a_key_is_not_sent_in_the_clear() -> None:
    for url in ("http://127.0.0.1:30000", "http://localhost:3", "https://gpu.example"):
        SglangConfig(url=url, api_key=SecretStr("key"))
    SglangConfig(url="http://gpu.example:30000")
    with pytest.raises(ValidationError, match="unencrypted"):
        SglangConfig(url="http://gpu.example:30000", api_key=SecretStr("key"))
