"""Speak the documented routes of an SGLang server, without a model: tokens hash weights, context and seed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from blake3 import blake3

VOCABULARY = 32
STOP_SHARE = 8  # one token in so many is a stop token, where there are any


class FakeServer:
    """The state of the server, and what tests make it do wrong."""

    def __init__(self) -> None:
        self.version = "default"
        self.weights = b"of the folder that it was started with"
        self.paused = False
        self.keys_of: set[bytes] = set()  # weights of which keys and values are in the cache
        self.requests: list[tuple[str, Any]] = []
        self.authorization: set[str | None] = set()
        self.statuses: list[int] = []  # of the next answers, instead of them
        self.answers: list[Any] = []  # the next bodies of /generate, instead of them
        self.flushes_refused = 0
        self.may_answer = asyncio.Event()  # /generate waits for it
        self.may_answer.set()

    def restart(self) -> None:
        """Lose the weights, as a server that starts again does."""
        self.version, self.weights, self.paused, self.keys_of = "default", b"its own", False, set()

    def routes(self) -> web.Application:
        app = web.Application(middlewares=[self._any], client_max_size=1 << 28)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/pause_generation", self._pause)
        app.router.add_post("/continue_generation", self._continue)
        app.router.add_post("/update_weights_from_disk", self._update)
        app.router.add_post("/flush_cache", self._flush)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_get("/model_info", self._model_info)
        return app

    @web.middleware
    async def _any(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.authorization.add(request.headers.get("Authorization"))
        self.requests.append((request.path, await request.json() if request.can_read_body else None))
        if self.statuses:
            return web.json_response({"message": "as the test wants"}, status=self.statuses.pop(0))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version, "model_path": "model"})

    async def _pause(self, _: web.Request) -> web.Response:
        assert self.requests[-1][1] == {"mode": "abort"}
        self.paused = True
        return web.json_response({"status": "ok"})

    async def _continue(self, _: web.Request) -> web.Response:
        self.paused = False
        return web.json_response({"status": "ok"})

    async def _update(self, _: web.Request) -> web.Response:
        assert self.paused, "requests could mix weights"
        values = self.requests[-1][1]
        weights = await asyncio.to_thread(_weights_in, Path(values["model_path"]))
        if weights is None:
            message = "Failed to get weights iterator"
            return web.json_response({"success": False, "message": message, "num_paused_requests": 0}, status=400)
        self.weights = weights
        self.version = values["weight_version"]
        return web.json_response({"success": True, "message": "Succeeded.", "num_paused_requests": 0})

    async def _flush(self, _: web.Request) -> web.Response:
        if self.flushes_refused:
            self.flushes_refused -= 1
            return web.Response(status=400, text="Cache was not flushed")
        self.keys_of.clear()
        return web.Response(text="Cache flushed.")

    async def _abort(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _generate(self, _: web.Request) -> web.Response:
        assert not self.paused
        values = self.requests[-1][1]
        await self.may_answer.wait()
        if self.answers:
            return web.json_response(self.answers.pop(0))
        self.keys_of.add(self.weights)
        assert self.keys_of == {self.weights}, "the prefix cache mixes versions"
        pairs = zip(values["input_ids"], values["sampling_params"], strict=True)
        return web.json_response([self._completion(context, params) for context, params in pairs])

    def _completion(self, context: list[int], params: dict[str, Any]) -> dict[str, Any]:
        made: list[int] = []
        stop = params["stop_token_ids"]
        while len(made) < params["max_new_tokens"] and not (made and made[-1] in stop):
            key = repr((context + made, params["sampling_seed"])).encode()
            digest = blake3(self.weights + key).digest(9)
            stops = stop and digest[0] % STOP_SHARE == 0
            made.append(stop[0] if stops else 2 + int.from_bytes(digest[1:]) % (VOCABULARY - 2))
        ended = made[-1] in stop
        reason = {"type": "stop", "matched": made[-1]} if ended else {"type": "length", "length": len(made)}
        logprob = -math.log(VOCABULARY - 2)
        meta = {
            "id": "request",
            "finish_reason": reason,
            "weight_version": self.version,
            "output_token_logprobs": [[logprob, token, None] for token in made],
        }
        return {"text": "", "output_ids": made, "meta_info": meta}


def _weights_in(folder: Path) -> bytes | None:
    """Return a hash of a model's weights; None if the folder has no model."""
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").exists():
        return None
    return blake3(b"".join(file.read_bytes() for file in files)).digest()


@asynccontextmanager
async def fake_server() -> AsyncIterator[tuple[FakeServer, str]]:
    """Run one, and yield it with its address."""
    fake = FakeServer()
    server = TestServer(fake.routes())
    await server.start_server()
    try:
        yield fake, str(server.make_url("")).rstrip("/")
    finally:
        await server.close()
