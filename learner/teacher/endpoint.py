"""Score rollouts by a teacher behind an OpenAI-compatible server that returns the log-probabilities of prompts.

vLLM's completions do: with ``prompt_logprobs = 0`` the answer has, for each token of the prompt but the first, the
token's own log-probability at temperature 1. A rollout is sent as such a prompt, by its token ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import aiohttp
import numpy as np

from learner.config import TeacherConfig
from learner.training.micro_batches import FloatArray
from learner.training.packing import PackedBatch, TrainingRow
from rollcast.runtime.errors import ConfigError, MalformedMessage, RollcastError, Unreachable
from rollcast.runtime.waits import backoff_delays_s

LOGPROB_MIN = -50.0  # servers write probabilities of 0 as -inf or -9999, which no gradient survives
_BYTES_PER_TOKEN_MAX, _BYTES_MAX = 2048, 1 << 20  # of an answer: for each token, and besides
_KEY_BYTES_MAX = 4096
_FIRST_PAUSE_S, _PAUSE_MAX_S = 1.0, 30.0
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})  # statuses after which a request is repeated


class TeacherEndpoint:
    """A client of the server in ``teacher.endpoint``.

    Raises:
        ConfigError: the key file cannot be read.
    """

    def __init__(self, config: TeacherConfig) -> None:
        self._config = config
        self._url = config.endpoint.rstrip("/") + "/completions"
        self._headers = {} if config.key_file is None else {"Authorization": f"Bearer {_key(config)}"}
        self._room = asyncio.Semaphore(config.concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def score(self, rows: Sequence[TrainingRow]) -> list[FloatArray]:
        """Return the log-probability of each token of each rollout, prompts included, f32 [tokens]; the first is 0.

        Raises:
            Unreachable: the server did not answer in time, or refuses the request.
            MalformedMessage: it answers something else.
        """
        if self._session is None:
            unlimited = aiohttp.ClientTimeout(total=None)  # each rollout has a deadline of its own
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=unlimited)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._score_one(row)) for row in rows]
        except ExceptionGroup as failed:  # the first failure cancels the others
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _score_one(self, row: TrainingRow) -> FloatArray:
        tokens = [*row.prompt_token_ids, *(one for segment in row.segments for one in segment.token_ids)]
        async with self._room:
            return _logprobs(await self._answer(tokens), tokens)

    async def _answer(self, tokens: Sequence[int]) -> bytes:
        """Return the server's answer, after as many tries as the time allows."""
        body: dict[str, Any] = {"prompt": list(tokens), "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        if self._config.model:
            body["model"] = self._config.model
        bytes_max, problem = _BYTES_MAX + _BYTES_PER_TOKEN_MAX * len(tokens), ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.timeout_s):
                for pause_s in backoff_delays_s(Random(), first_s=_FIRST_PAUSE_S, most_s=_PAUSE_MAX_S):
                    data, problem = await self._ask(body, bytes_max)
                    if data is not None:
                        return data
                    await asyncio.sleep(pause_s)
        last = f"; the newest try ended with {problem}" if problem else ""
        raise self._unreachable(f"no answer within {self._config.timeout_s:g} s{last}")

    async def _ask(self, body: dict[str, Any], bytes_max: int) -> tuple[bytes | None, str]:
        """Return the server's answer; or None and why there is none, if another try may help."""
        assert self._session is not None
        try:
            async with self._session.post(self._url, json=body) as response:
                data = await _limited(response, bytes_max)
        except aiohttp.ClientError as error:
            return None, f"{type(error).__name__}: {error}"
        if response.status == 200:
            return data, ""
        problem = f"status {response.status}: {data[:300].decode('utf-8', 'replace')}"
        if response.status not in _AGAIN:
            raise self._unreachable(f"it refuses the request with {problem}")
        return None, problem

    def _unreachable(self, cause: str) -> RollcastError:
        return Unreachable(
            f"the teacher at {self._url} did not score a rollout",
            cause=cause,
            fix="check the server, teacher.endpoint, teacher.model and teacher.key_file, and start the learner again",
        )


def laid_out(batch: PackedBatch, values: Sequence[FloatArray]) -> FloatArray:
    """Return the values of each rollout's tokens at its place in a batch, f32 [rows, time]; 0 elsewhere."""
    result: FloatArray = np.zeros(batch.tokens.shape, np.float32)
    for place, own in zip(batch.places, values, strict=True):
        result[place] = own
    return result


async def _limited(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Return a response's body.

    Raises:
        MalformedMessage: it is longer than bytes_max.
    """
    data = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        data += chunk
        if len(data) > bytes_max:
            raise MalformedMessage(f"the teacher's answer has more than {bytes_max} bytes")
    return bytes(data)


def _logprobs(answer: bytes, tokens: Sequence[int]) -> FloatArray:
    """Read the log-probabilities of the prompt's tokens from an answer.

    Raises:
        MalformedMessage: it has none, or those of other tokens.
    """
    try:
        found = json.loads(answer)["choices"][0]["prompt_logprobs"]
        if len(found) != len(tokens):
            raise ValueError(f"it scores {len(found)} tokens of {len(tokens)}")
        values = [0.0, *(float(one[str(token)]["logprob"]) for one, token in zip(found[1:], tokens[1:], strict=True))]
        scored = np.array(values, np.float32)
        if np.isnan(scored).any() or (scored > 0.0).any():
            raise ValueError("a log-probability is above 0 or not a number")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise MalformedMessage(
            "the teacher's answer has no log-probabilities of the rollout's tokens",
            cause=f"{type(error).__name__}: {str(error)[:200]}",
            fix="use a server that supports prompt_logprobs, such as vLLM, with a model of the policy's tokenizer",
        ) from None
    limited: FloatArray = np.maximum(scored, np.float32(LOGPROB_MIN))
    return limited


def _key(config: TeacherConfig) -> str:
    assert config.key_file is not None
    try:
        with config.key_file.open("rb") as file:
            return file.read(_KEY_BYTES_MAX).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the teacher's key file {config.key_file}", cause=str(error), fix="correct teacher.key_file"
        ) from None
