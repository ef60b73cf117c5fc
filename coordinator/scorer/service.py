"""Serve the protocol of coordinator/tasks/checks/http_check.py with the verifier pool: a reward service that scales.

Several scorers behind one address share the work: each request is scored by the process that got it. A scorer whose
queue is full answers with status 503, and the coordinator retries.
"""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path
from typing import Any

import msgspec
import structlog
from aiohttp import web
from blake3 import blake3
from prometheus_client import Counter, Gauge

from coordinator.config.tasks import JsonlTask
from coordinator.scorer.config import ScorerConfig
from coordinator.tasks.checks.service import read_secret
from coordinator.tasks.checks.task import Problem
from coordinator.verifiers.build import build_scorer
from coordinator.verifiers.scorer import Failed, ScoreItem, Scorer, Verdict
from rollcast.runtime import metrics
from rollcast.runtime.process import EXIT_INTERRUPTED, bind_error

log = structlog.get_logger()

BODY_BYTES_MAX = 64 << 20
ITEMS_MAX = 1024
DETAIL_SENT_MAX = 400  # characters of why an item failed: the end of a traceback, which coordinators keep whole
SHUTDOWN_S = 5.0  # for requests that are being answered
_NO_ROWS = Path("no-rows.jsonl")  # the task's problems come with the requests


class Item(msgspec.Struct, frozen=True):
    """One completion to score; an ``id`` is not needed, because equal items are recognised by their content."""

    completion: str
    prompt: str = ""
    answer: str = ""
    metadata: dict[str, Any] = {}

    def score_item(self) -> ScoreItem:
        """Return the item for the verifier pool."""
        problem = Problem("item", self.prompt, self.answer, {"metadata": self.metadata})
        digest = blake3(f"{problem.to_json()}\n{self.completion}".encode(errors="replace"))
        return ScoreItem(digest.hexdigest(length=16), problem, self.completion)


class Request(msgspec.Struct, frozen=True):
    """The body of a request."""

    items: list[Item]


_request = msgspec.json.Decoder(Request)


class ScorerApp:
    """Answers requests with the verdicts of a scorer.

    Args:
        secret: that requests must show; empty: none.
        waiting_max: items that may wait for a verdict; requests beyond it are refused.
    """

    def __init__(self, scorer: Scorer, secret: str, waiting_max: int) -> None:
        self._scorer = scorer
        self._expected = f"Bearer {secret}".encode() if secret else b""
        self._waiting_max = waiting_max
        self._waiting = 0
        registry = self._registry = metrics.new_registry()
        text = "Completions that wait for a verdict."
        Gauge("rollcast_scorer_waiting", text, registry=registry).set_function(lambda: self._waiting)
        text = "Completions scored and failed, and those refused because too many waited."
        self._items = Counter("rollcast_scorer_items", text, ["outcome"], registry=registry)

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [web.post("/", self._score), web.get("/health", self._health), web.get("/metrics", self._metrics)]
        )
        return app

    async def _score(self, request: web.Request) -> web.Response:
        if self._expected and not hmac.compare_digest(
            request.headers.get("Authorization", "").encode(), self._expected
        ):
            return web.json_response({"error": "the secret is wrong"}, status=401)
        try:
            items = _request.decode(await request.read()).items
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return web.json_response({"error": f"this is no request to score: {error}"}, status=400)
        if len(items) > ITEMS_MAX:
            return web.json_response({"error": f"a request has at most {ITEMS_MAX} items"}, status=413)
        if self._waiting + len(items) > self._waiting_max:
            self._items.labels("refused").inc(len(items))
            return web.json_response({"error": f"{self._waiting} completions wait already"}, status=503)
        self._waiting += len(items)
        try:
            verdicts = await self._scorer.score([item.score_item() for item in items])
        finally:
            self._waiting -= len(items)
        for verdict in verdicts:
            self._items.labels("failed" if isinstance(verdict, Failed) else "scored").inc()
        return web.json_response({"scores": [_answer(verdict) for verdict in verdicts]})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(self._registry), headers={"Content-Type": metrics.CONTENT_TYPE})


def _answer(verdict: Verdict) -> dict[str, Any]:
    if isinstance(verdict, Failed):
        return {"error": f"{verdict.reason}: {verdict.detail[-DETAIL_SENT_MAX:]}"}
    return {**verdict.score.parts, "reward": verdict.score.reward}


async def run(config: ScorerConfig, stop: asyncio.Event) -> int:
    """Serve until ``stop`` is set; return the exit status.

    Raises:
        TaskError: the check is wrong, the secret cannot be read, or a process does not start.
        PortInUse: the port cannot be bound.
    """
    serve = config.serve
    secret = "" if serve.secret_file is None else await asyncio.to_thread(read_secret, serve.secret_file)
    scorer = build_scorer(JsonlTask(kind="jsonl", path=_NO_ROWS, check=config.check), 0, config.verifier)
    await scorer.start()
    runner = web.AppRunner(
        ScorerApp(scorer, secret, config.verifier.queue_max).application(),
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
    )
    try:
        await runner.setup()
        try:
            await web.TCPSite(runner, serve.host, serve.port).start()
        except OSError as error:
            raise bind_error(f"{serve.host}:{serve.port}", error, setting="serve.port") from None
        log.info("listening", address=f"{serve.host}:{serve.port}", check=config.check.kind)
        await stop.wait()
    finally:
        await runner.cleanup()
        await scorer.close()
    return EXIT_INTERRUPTED
