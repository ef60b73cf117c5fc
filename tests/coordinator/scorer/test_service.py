"""Test a scorer with real verifier processes, asked by the check that coordinators use and by strangers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from pydantic import ValidationError

from coordinator.config.checks import ExactCheck, HttpCheck, PythonCheck
from coordinator.config.config import VerifierConfig
from coordinator.scorer import service
from coordinator.scorer.config import ScorerConfig, ScorerServeConfig
from coordinator.scorer.service import ScorerApp
from coordinator.tasks.checks.http_check import HttpChecker
from coordinator.tasks.checks.task import Problem, Score, ScoringFailure
from coordinator.verifiers.scorer import Failed, Scored, ScoreItem, Verdict
from rollcast.runtime.process import EXIT_INTERRUPTED


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@asynccontextmanager
async def serving(config: ScorerConfig) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(service.run(config, stop))
    try:
        async with asyncio.timeout(60.0), aiohttp.ClientSession() as session:
            while not running.done():
                try:
                    async with session.get(f"http://127.0.0.1:{config.serve.port}/health") as response:
                        assert response.status == 200
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.02)
        yield
    finally:
        stop.set()
        assert await running == EXIT_INTERRUPTED


async def test_a_coordinators_check_is_answered_by_a_scorer(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def score(prompt, completion, answer, metadata):\n"
        "    if completion == 'bad':\n        raise ValueError('no idea')\n"
        "    return {'right': float(completion == answer), 'level': metadata['level']}\n"
    )
    serve = ScorerServeConfig(port=free_port(), secret_file=secret)
    config = ScorerConfig(check=PythonCheck(kind="python", path=f"{reward}:score"), serve=serve)
    check = HttpCheck(kind="http", url=f"http://127.0.0.1:{serve.port}", secret_file=secret, attempts=1)
    problem = Problem("jsonl:0", "6+6=", "12", {"metadata": {"level": 0.5}})
    checker = HttpChecker(check)
    checker.warm_up()
    async with serving(config):
        try:
            found = await checker.check_many([(problem, "12"), (problem, "13"), (problem, "bad")], 30.0)
        finally:
            await checker.close()
    assert found[:2] == [
        Score(1.5, True, parts={"right": 1.0, "level": 0.5}),
        Score(0.5, False, parts={"right": 0.0, "level": 0.5}),
    ]
    assert isinstance(found[2], ScoringFailure)
    assert "no idea" in found[2].detail


class Slow:
    """A scorer whose verdicts come when ``let`` is set."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.begun = asyncio.Event()
        self.keys: list[str] = []

    async def score(self, items: list[ScoreItem]) -> list[Verdict]:
        self.keys += [item.key for item in items]
        self.begun.set()
        await self.let.wait()
        return [
            Scored(one.key, Score(1.0, True)) if one.completion_text else Failed(one.key, "timeout") for one in items
        ]


def body(*completions: str) -> dict[str, Any]:
    return {
        "items": [{"id": "x", "prompt": "p", "completion": one, "answer": "a", "metadata": {}} for one in completions]
    }


async def test_requests_beyond_the_queue_are_refused_and_counted() -> None:
    slow = Slow()
    app = ScorerApp(slow, "", 2)  # type: ignore[arg-type]
    async with TestClient(TestServer(app.application())) as client:
        first = asyncio.ensure_future(client.post("/", json=body("a", "")))
        await slow.begun.wait()
        refused = await client.post("/", json=body("b"))
        assert refused.status == 503
        slow.let.set()
        answered = await first
        assert await answered.json() == {"scores": [{"reward": 1.0}, {"error": "timeout: "}]}
        text = await (await client.get("/metrics")).text()
        again = await client.post("/", json=body("a"))
        assert again.status == 200
    assert slow.keys[0] == slow.keys[2] != slow.keys[1]
    for outcome in ("scored", "failed", "refused"):
        assert f'rollcast_scorer_items_total{{outcome="{outcome}"}} 1.0' in text
    assert "rollcast_scorer_waiting 0.0" in text


@pytest.mark.parametrize(
    ("sent", "secret", "status"),
    [
        (b'{"items": []}', "hush", 200),
        (b'{"items": []}', "loud", 401),
        (b"[]", "hush", 400),
        (b"[" * 100_000, "hush", 400),
        (b'{"items": [{"completion": 3}]}', "hush", 400),
        (b'{"items": [' + b",".join([b'{"completion": ""}'] * 1025) + b"]}", "hush", 413),
    ],
)
async def test_strangers_and_malformed_requests_are_refused(sent: bytes, secret: str, status: int) -> None:
    slow = Slow()
    slow.let.set()
    app = ScorerApp(slow, "hush", 4096)  # type: ignore[arg-type]
    async with TestClient(TestServer(app.application())) as client:
        response = await client.post("/", data=sent, headers={"Authorization": f"Bearer {secret}"})
        assert response.status == status


def test_other_hosts_need_the_secret() -> None:
    check = ExactCheck(kind="exact")
    with pytest.raises(ValidationError, match="a secret is needed"):
        ScorerConfig(check=check, serve=ScorerServeConfig(host="0.0.0.0"))
    assert ScorerConfig(check=check, verifier=VerifierConfig(processes=4)).serve.port == 7406
