"""Send requests to an SGLang server: generation, and the swap of its weights.

Every answer is limited in size, and every wait has a deadline. Source of the routes:
docs/advanced_features/sglang_for_rl.md of sgl-project/sglang.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import structlog

from peer.engines.sglang.answers import Answer, Asked, answers_bytes_max, generate_request, read_answers
from peer.engines.sglang.config import SglangConfig
from rollcast.runtime.errors import MalformedMessage, ModelError, Unreachable
from rollcast.runtime.waits import backoff_delays_s, deadline

_FLUSHES = 5  # attempts to drop the cache
_FIRST_RETRY_S = 0.5
_CONTROL_TIMEOUT_S = 60.0  # of a request that neither generates nor loads
_CONTROL_BYTES = 1 << 20  # of its answer
_ABORT_TIMEOUT_S = 5.0
_AWAY = {502, 503, 504}  # a server that starts, or a router without one
_SHOWN_CHARACTERS = 300

log = structlog.get_logger()


class SglangClient:
    """The requests to one server. A session is opened with the first one."""

    def __init__(self, config: SglangConfig, random: Random | None = None) -> None:
        self._config = config
        self._url = config.url.rstrip("/")
        self._random = random or Random()
        self._session: aiohttp.ClientSession | None = None

    async def generate(self, asked: Sequence[Asked], weights: str, vocabulary_size: int) -> list[Answer]:
        """Return the next tokens of completions, all sampled with the weights of this label.

        Raises:
            StaleAnswer: other weights answered, or the requests were aborted.
            Unreachable, WaitTimedOut: the server does not answer, or not in time.
            MalformedMessage: the answer is not one.
        """
        limit = answers_bytes_max(asked)
        timeout_s = self._config.answer_timeout_s
        status, body = await self._request("POST", "/generate", generate_request(asked), timeout_s, limit)
        if status != 200:
            raise MalformedMessage(
                "the SGLang server refused to generate",
                cause=_shown(body) or f"HTTP status {status}",
                fix="start it with a context length that fits the run, and without limits on requests",
            )
        return read_answers(body, asked, weights, vocabulary_size)

    async def put_weights(self, folder: Path, label: str) -> None:
        """Let the server read the weights in a folder, drop its prefix cache, and go on. Running requests are aborted.

        It stays paused if this fails: it must not generate with weights of which nobody knows what they are.

        Raises:
            ModelError: the server cannot use them.
            Unreachable, WaitTimedOut, MalformedMessage: as `generate`.
        """
        await self._control("/pause_generation", {"mode": "abort"})
        update = {"model_path": str(folder), "weight_version": label, "flush_cache": True}
        timeout_s = self._config.load_timeout_s
        status, body = await self._request("POST", "/update_weights_from_disk", update, timeout_s, _CONTROL_BYTES)
        if status != 200 or _object(body).get("success") is not True:
            raise ModelError(
                f"the SGLang server cannot load the weights in {folder}",
                cause=_shown(body) or f"HTTP status {status}",
                fix="start it with a model of the run's architecture and precision; it must see this path",
            )
        await self._flush_cache()
        if (found := await self.weights()) != label:
            raise ModelError(
                "the SGLang server does not have the weights that it was given",
                cause=f"it reports {found[:_SHOWN_CHARACTERS]!r} and not {label!r}",
                fix="let no one else change the weights of this server, and no router choose among several",
            )
        await self._control("/continue_generation", {})

    async def weights(self) -> str:
        """Return the label of the server's weights. Older releases have it at another route, and are refused."""
        status, body = await self._request("GET", "/model_info", None, _CONTROL_TIMEOUT_S, _CONTROL_BYTES)
        label = _object(body).get("weight_version") if status == 200 else None
        if not isinstance(label, str):
            raise MalformedMessage(
                f"the server at {self._url} does not say which weights it has",
                cause=f"/model_info answers with HTTP status {status} and no weight_version",
                fix="use an SGLang server of a release that docs/engines.md names",
            )
        return label

    async def abort_all(self) -> None:
        """Abort the server's requests; if it cannot be reached, it has none that matter."""
        try:
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await self._once("POST", "/abort_request", {"abort_all": True}, _CONTROL_BYTES)
        except (aiohttp.ClientError, OSError, MalformedMessage):  # OSError includes a timeout
            return

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _flush_cache(self) -> None:
        """Drop all keys and values. The server refuses as long as aborted requests have not ended."""
        delays_s = backoff_delays_s(self._random, first_s=_FIRST_RETRY_S)
        for _ in range(_FLUSHES):
            status, body = await self._request("POST", "/flush_cache", {}, _CONTROL_TIMEOUT_S, _CONTROL_BYTES)
            if status == 200:
                return
            await asyncio.sleep(next(delays_s))
        raise self._refused("/flush_cache", status, body)

    async def _control(self, route: str, values: dict[str, Any]) -> None:
        status, body = await self._request("POST", route, values, _CONTROL_TIMEOUT_S, _CONTROL_BYTES)
        if status != 200:
            raise self._refused(route, status, body)

    def _refused(self, route: str, status: int, body: bytes) -> Unreachable:
        return Unreachable(
            f"the SGLang server refused {route}",
            cause=f"HTTP status {status}: {_shown(body)}",
            fix="set engine.sglang.api_key if the server has a key, and let no one else use it",
        )

    async def _request(
        self, method: str, route: str, values: dict[str, Any] | None, timeout_s: float, bytes_max: int
    ) -> tuple[int, bytes]:
        """Return status and body, retrying while the server is away."""
        delays_s = backoff_delays_s(self._random, first_s=_FIRST_RETRY_S)
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + self._config.away_timeout_s
        while True:
            try:
                async with deadline(timeout_s, f"{route} of the SGLang server at {self._url}"):
                    status, body = await self._once(method, route, values, bytes_max)
                if status not in _AWAY:
                    return status, body
                cause = f"HTTP status {status}"
            except (aiohttp.ClientError, OSError) as error:
                cause = f"{type(error).__name__}: {error}"
            if now_s() >= until_s:
                break
            log.info("waiting for the SGLang server", cause=cause)
            await asyncio.sleep(next(delays_s))
        raise Unreachable(
            f"cannot reach the SGLang server at {self._url}",
            cause=cause,
            fix="start it (python -m sglang.launch_server), or correct engine.sglang.url",
        )

    async def _once(self, method: str, route: str, values: dict[str, Any] | None, bytes_max: int) -> tuple[int, bytes]:
        if self._session is None:
            key = self._config.api_key.get_secret_value()
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # each request has a deadline of its own
                trust_env=False,
            )
        parts: list[bytes] = []
        size = 0
        async with self._session.request(method, self._url + route, json=values, allow_redirects=False) as response:
            async for part in response.content.iter_any():
                size += len(part)
                if size > bytes_max:
                    cause = f"the answer to {route} has more than {bytes_max} bytes"
                    raise MalformedMessage("an answer of the SGLang server is too long", cause=cause)
                parts.append(part)
            return response.status, b"".join(parts)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _shown(body: bytes) -> str:
    """Return the beginning of a server's message, without control characters."""
    text = body[: 4 * _SHOWN_CHARACTERS].decode(errors="replace")[:_SHOWN_CHARACTERS]
    return "".join(letter if letter.isprintable() else " " for letter in text)
