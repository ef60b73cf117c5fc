"""Run requests through vLLM, and gather their tokens into frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from peer.engines.vllm.server.frames import Frame

FLUSH_S = 0.005
"""Seconds for which tokens are gathered before they are sent: a step of a large batch arrives token by token."""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to generate, as the peer numbered it."""

    number: int
    prompt: list[int]
    seed: int
    temperature: float
    new_tokens_max: int
    stop_token_ids: list[int]

    @classmethod
    def read(cls, frame: Frame) -> list[Request]:
        """Return the requests of a frame; their prompts follow each other in its body, i32."""
        tokens = np.frombuffer(frame.body, dtype="<i4").tolist()
        requests, start = [], 0
        for one in frame.header["requests"]:
            prompt = tokens[start : start + one["prompt_tokens"]]
            start += len(prompt)
            fields = {name: one[name] for name in ("number", "seed", "temperature", "new_tokens_max", "stop_token_ids")}
            requests.append(cls(prompt=prompt, **fields))
        return requests


@dataclass(slots=True)
class _New:
    """Tokens of one request that were not sent yet."""

    request: Request
    salt: str  # of the version that sampled them
    position: int  # of the first of them in prompt and completion
    token_ids: list[int]
    values: list[float]  # as vLLM reports them, see sampling


class Completions:
    """The running requests.

    Args:
        send: sends a frame to the peer.
    """

    def __init__(self, llm: Any, send: Callable[[Frame], None]) -> None:
        self._llm = llm
        self._send = send
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._new: dict[int, _New] = {}
        self._ended: dict[int, str] = {}
        self._flush: asyncio.TimerHandle | None = None
        self._salts: dict[int, str] = {}  # of the version that samples each running request's tokens

    def begin(self, requests: list[Request], salt: str, adapters: Any = None) -> None:
        """Start requests. Prefix caches are shared only among those with one ``salt``.

        Args:
            adapters: vLLM's LoRARequest; None: the weights alone.
        """
        for request in requests:
            self._salts[request.number] = salt
            task = asyncio.create_task(self._run(request, salt, adapters), name=f"request {request.number}")
            self._tasks[request.number] = task

    async def end(self, numbers: list[int] | None) -> None:
        """Abort requests, all with None, and wait until vLLM has let go of them. Unsent tokens are discarded."""
        chosen = list(self._tasks) if numbers is None else numbers
        tasks = [task for number in chosen if (task := self._tasks.pop(number, None)) is not None]
        for number in chosen:
            self._salts.pop(number, None)
            self._new.pop(number, None)
            self._ended.pop(number, None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def end_of(self, salt: str) -> None:
        """Abort the requests of one version (see end)."""
        await self.end([number for number, own in self._salts.items() if own == salt])

    def go_on_as(self, salt: str) -> None:
        """Send what was sampled so far; later tokens are those of another version, which ``salt`` names."""
        self.flush()
        self._salts = dict.fromkeys(self._salts, salt)

    def flush(self) -> None:
        """Send the tokens that were gathered, a frame for those of each version."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        new, ended = list(self._new.values()), self._ended
        self._new, self._ended = {}, {}
        salts = list(dict.fromkeys(one.salt for one in new)) or [""] * bool(ended)
        for salt in salts:
            self._send_tokens(salt, [one for one in new if one.salt == salt], ended if salt == salts[-1] else {})

    def _send_tokens(self, salt: str, new: list[_New], ended: dict[int, str]) -> None:
        """Send new tokens of one version, and which requests have ended, with the reasons."""
        from peer.engines.vllm.server.sampling import log_probabilities

        tokens = [token for one in new for token in one.token_ids]
        logprobs = log_probabilities(
            [value for one in new for value in one.values],
            [one.request.seed for one in new for _ in one.token_ids],
            [one.position + offset for one in new for offset in range(len(one.token_ids))],
            tokens,
        )
        header = {
            "is": "tokens",
            "salt": salt,
            "counts": [[one.request.number, len(one.token_ids)] for one in new],
            "ended": [[number, reason] for number, reason in ended.items()],
        }
        self._send(Frame(header, np.array(tokens, "<i4").tobytes() + logprobs.astype("<f4").tobytes()))

    async def _run(self, request: Request, salt: str, adapters: Any) -> None:
        position = len(request.prompt)
        reason = "failed"
        try:
            async for output in self._llm.generate(*_vllm_request(request, salt), lora_request=adapters):
                completion = output.outputs[0]
                values = [step[token].logprob for token, step in _steps(completion)]
                self._keep(request, position, completion.token_ids, values)
                position += len(completion.token_ids)
                reason = completion.finish_reason or reason
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:500]
        self._tasks.pop(request.number, None)
        self._salts.pop(request.number, None)
        self._ended[request.number] = reason
        self._flush_soon()

    def _keep(self, request: Request, position: int, token_ids: list[int], values: list[float]) -> None:
        if not token_ids:
            return
        salt = self._salts.get(request.number, "")
        new = self._new.setdefault(request.number, _New(request, salt, position, [], []))
        new.token_ids += token_ids
        new.values += values
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)


def _steps(completion: Any) -> Any:
    return zip(completion.token_ids, completion.logprobs or (), strict=True)


def _vllm_request(request: Request, salt: str) -> tuple[Any, Any, str]:
    """Return the prompt, the parameters and the id of vLLM's request."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    from peer.engines.vllm.server.sampling import SEED, TEMPERATURE

    params = SamplingParams(
        temperature=0.0,
        max_tokens=request.new_tokens_max,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=True,
        detokenize=False,
        logprobs=0,
        output_kind=RequestOutputKind.DELTA,
        extra_args={SEED: request.seed, TEMPERATURE: request.temperature},
    )
    return TokensPrompt(prompt_token_ids=request.prompt, cache_salt=salt), params, str(request.number)
