"""Completions in progress on a vLLM server: a request each, whose tokens are gathered and given out in slices."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from peer.engines.base import CompletionSlice, GenerateRequest, check_requests
from peer.engines.vllm.checkpoint import Checkpoint
from peer.engines.vllm.process import ServerLost
from peer.engines.vllm.server.frames import Frame
from peer.engines.vllm.server.llm import ADAPTERS_AT_ONCE
from peer.engines.vllm.supervisor import SILENCE_TIMEOUT_S
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.rollouts import FinishReason
from rollcast.wire.text.stop_strings import StopStrings, stop_strings
from rollcast.wire.version_swap import AtVersionSwap

if TYPE_CHECKING:
    from peer.engines.vllm.engine import VllmEngine

IDLE_S = 1.0
"""Seconds for which vLLM goes on after a slice: a batch that was ended or rests must not use the device."""

_numbers = count(1)  # of requests, over all generations: a late token of an aborted request finds no row

#: The version that sampled a token.
Sampler = tuple[Epoch, Version]


@dataclass(slots=True)
class Row:
    """One completion: the tokens that were given out, and those that wait for the next slice."""

    index: int
    request: GenerateRequest
    stop: StopStrings | None
    given: list[int]
    waiting: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of the waiting tokens
    sampled_by: list[Sampler] = field(default_factory=list)  # of the waiting tokens
    number: int | None = None  # of its request on the server; None: none runs
    checkpoint: Checkpoint | None = None  # the version that samples it; None: the newest that the generation has
    ended: FinishReason | None = None  # how it ends with its last waiting token

    @property
    def tokens(self) -> int:
        """Return the length of the completion so far."""
        return len(self.given) + len(self.waiting)

    def receive(self, token_ids: Iterable[int], logprobs: Iterable[float], sampled_by: Sampler) -> None:
        """Append new tokens, up to the one that ends the completion."""
        sampling = self.request.sampling
        for token, logprob in zip(token_ids, logprobs, strict=True):
            if self.ended is not None:
                return
            self.waiting.append(token)
            self.logprobs.append(logprob)
            self.sampled_by.append(sampled_by)
            if token in sampling.stop_token_ids:
                self.ended = "stop"
            elif self.tokens >= sampling.max_new_tokens:
                self.ended = "length"

    def cut_at_stop_string(self) -> None:
        """End the completion with the first waiting token that completes a stop string."""
        if self.stop is None:
            return
        end = self.stop.end([*self.given, *self.waiting], len(self.given))
        if end is not None:
            keep = end - len(self.given)
            del self.waiting[keep:], self.logprobs[keep:], self.sampled_by[keep:]
            self.ended = "stop"

    def discard_waiting(self) -> None:
        """Discard the tokens that were not given out."""
        self.waiting, self.logprobs, self.sampled_by, self.ended = [], [], [], None

    def take(self, tokens_max: int) -> CompletionSlice | None:
        """Remove up to ``tokens_max`` waiting tokens of one version; None if no token waits."""
        if not self.waiting:
            return None
        sampler = self.sampled_by[0]
        end = next((index for index, one in enumerate(self.sampled_by) if one != sampler), len(self.waiting))
        end = min(end, tokens_max)
        tokens, logprobs = tuple(self.waiting[:end]), tuple(self.logprobs[:end])
        del self.waiting[:end], self.logprobs[:end], self.sampled_by[:end]
        self.given += tokens
        return CompletionSlice(self.index, *sampler, tokens, logprobs, None if self.waiting else self.ended)


class VllmGeneration:
    """A Generation (peer.engines.base).

    vLLM goes on between two slices, for IDLE_S at most, so tokens may wait for the next one. If the server is lost, the
    tokens that arrived stay, and the completions are continued on the next server.
    """

    def __init__(self, engine: VllmEngine, checkpoint: Checkpoint) -> None:
        self._engine = engine
        self._server = engine.supervisor
        self._samplers: dict[str, Sampler] = {}  # by the salts of their checkpoints
        self._keep = False  # whether running requests go on at the next exchange of weights
        self._use(checkpoint)
        self._rows: dict[int, Row] = {}  # those that have not ended, by index
        self._by_number: dict[int, Row] = {}
        self._asked = 0
        self._life = 0
        self._idle: asyncio.TimerHandle | None = None

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        """Queue requests (see Generation.add)."""
        check_requests(requests)
        decode = None if self._engine.work is None else self._engine.work.decode
        stops = [stop_strings(item.sampling, decode, item.earlier_turns) for item in requests]
        for item, stop in zip(requests, stops, strict=True):
            self._rows[self._asked] = Row(self._asked, item, stop, list(item.already_generated))
            self._asked += 1

    async def next_slice(self, tokens_max: int) -> list[CompletionSlice]:
        """Wait for tokens for up to the engine's slice_s after the first (see Generation.next_slice)."""
        if not self._rows:
            return []
        if self._idle is not None:
            self._idle.cancel()
        self._server.received_tokens = self._received
        await self._server.surely(lambda: self._gather(tokens_max))
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.suspend)
        return [new for row in list(self._rows.values()) if (new := self._slice(row, tokens_max)) is not None]

    def renew(self, mode: AtVersionSwap = "continue") -> None:
        """Continue under the active version (see Generation.renew).

        With "continue" tokens that were not given out are discarded. With "keep" they are given out first, as the older
        version's, and so are those that vLLM samples until the weights are exchanged. Adapters are never exchanged
        under running requests: over a base, "keep" is "continue". With "finish" vLLM holds both versions' adapters.
        """
        active = self._engine.active
        if mode == "finish" and not self.versions_free:
            raise ValueError("there is no room for adapters of another version")
        if active is None or active is self._checkpoint:
            return
        if mode == "finish":
            self._use(active)
            return
        self._keep = mode == "keep" and active.base is None
        if not self._keep:
            self._abort(self._rows.values())
            self._discard_waiting()
        for row in self._rows.values():
            row.checkpoint = None
        self._use(active)
        self._engine.discard_unused()

    @property
    def versions_free(self) -> int | None:
        """How many more versions' adapters vLLM can hold beside those in use (see Generation.versions_free)."""
        return None if self._checkpoint.base is None else ADAPTERS_AT_ONCE - len(self._begun)

    @property
    def _begun(self) -> list[Checkpoint]:
        """The versions of rollouts in progress, in the order of the rollouts."""
        begun = (row.checkpoint for row in self._rows.values() if row.checkpoint is not None)
        return list({one.salt: one for one in begun}.values())

    def _use(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._samplers[checkpoint.salt] = checkpoint.epoch, checkpoint.version

    def suspend(self) -> None:
        """Abort the requests on the server. The completions stay as they are, and the next slice continues them."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._abort(self._rows.values())

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Return the versions that it needs; none once all completions have ended."""
        return [*self._begun, self._checkpoint] if self._rows else []

    async def _gather(self, tokens_max: int) -> None:
        """Have requests for all rows, and wait until the slice is complete.

        Raises:
            ServerLost: the server failed.
        """
        longest = max(
            len(one.request.prompt_token_ids) + one.request.sampling.max_new_tokens for one in self._rows.values()
        )
        for row in self._rows.values():
            row.checkpoint = row.checkpoint or self._checkpoint
        shape = self._engine.shape(self._checkpoint, self._engine.tokens_max(longest))
        beside = [one for one in self._begun if one is not self._checkpoint]
        await self._server.prepare(shape, self._checkpoint, keep=self._keep, beside=beside)
        self._keep = False
        self._submit()
        try:
            await self._wait_for_slice(tokens_max)
            await self._server.vouched()
        except ServerLost:
            if not self._server.is_vouched:
                self._discard_waiting()
            raise

    async def _wait_for_slice(self, tokens_max: int) -> None:
        """Wait until the slice is complete, or the engine's slice_s are over and there is a token.

        Raises:
            ServerLost: the server failed.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._engine.slice_s
        silent_until_s = loop.time() + SILENCE_TIMEOUT_S
        while not self._is_complete(tokens_max):
            now, some = loop.time(), any(row.waiting for row in self._rows.values())
            if some and now >= until_s:
                return
            self._server.check()
            self._server.news.clear()
            try:
                async with asyncio.timeout_at(until_s if some else silent_until_s):
                    await self._server.news.wait()
            except TimeoutError:
                if not some:
                    raise ServerLost(f"no token of {len(self._rows)} rollouts within {SILENCE_TIMEOUT_S:g} s") from None

    def _discard_waiting(self) -> None:
        for row in self._rows.values():
            row.discard_waiting()

    def _is_complete(self, tokens_max: int) -> bool:
        return all(row.ended is not None or len(row.waiting) >= tokens_max for row in self._rows.values())

    def _submit(self) -> None:
        """Send a request for each row that has none in this life of the server."""
        if self._life != self._server.life:
            self._life, self._by_number = self._server.life, {}
            for row in self._rows.values():
                row.number = None
        missing = [row for row in self._rows.values() if row.number is None and row.ended is None]
        for one in self._begun:
            self._submit_rows([row for row in missing if row.checkpoint is one], one.salt)

    def _submit_rows(self, rows: Iterable[Row], salt: str) -> None:
        """Send a request for each of these rows, which are of one version."""
        headers: list[dict[str, Any]] = []
        prompts = array("i")
        for row in rows:
            row.number = next(_numbers)
            self._by_number[row.number] = row
            context = [*row.request.prompt_token_ids, *row.given, *row.waiting]
            prompts.extend(context)
            headers.append(
                {
                    "number": row.number,
                    "prompt_tokens": len(context),
                    "seed": row.request.seed,
                    "temperature": row.request.sampling.temperature,
                    "new_tokens_max": row.request.sampling.max_new_tokens - row.tokens,
                    "stop_token_ids": list(row.request.sampling.stop_token_ids),
                }
            )
        if headers:
            self._server.generate(headers, prompts.tobytes(), salt)

    def _received(self, frame: Frame) -> None:
        """Take a frame of tokens.

        Raises:
            ValueError: it is malformed.
            ServerLost: vLLM ended a rollout that has tokens left.
        """
        counts = [(int(number), int(tokens)) for number, tokens in frame.header["counts"]]
        total = sum(tokens for _, tokens in counts)
        if any(tokens < 1 for _, tokens in counts) or len(frame.body) != 8 * total:
            raise ValueError(f"{len(frame.body)} bytes for {total} tokens")
        tokens = np.frombuffer(frame.body, "<i4", total)
        logprobs = np.frombuffer(frame.body, "<f4", total, 4 * total)
        vocabulary = self._checkpoint.config.vocabulary_size
        if total and not (tokens.min() >= 0 and tokens.max() < vocabulary and np.isfinite(logprobs).all()):
            raise ValueError("a token is not of the vocabulary, or its log-probability is not finite")
        start = 0
        for number, amount in counts:
            row = self._by_number.get(number)
            if row is not None:
                new = slice(start, start + amount)
                row.receive(tokens[new].tolist(), logprobs[new].tolist(), self._samplers[frame.header["salt"]])
            start += amount
        for number, reason in frame.header["ended"]:
            row = self._by_number.pop(int(number), None)
            if row is not None:
                row.number = None
                if row.ended is None:
                    raise ServerLost(f"vLLM ended a rollout after {row.tokens} tokens: {str(reason)[:500]}")

    def _slice(self, row: Row, tokens_max: int) -> CompletionSlice | None:
        row.cut_at_stop_string()
        new = row.take(tokens_max)
        if new is not None and new.finish_reason is not None:
            self._abort([row])
            del self._rows[row.index]
        return new

    def _abort(self, rows: Iterable[Row]) -> None:
        running = [row for row in rows if row.number is not None]
        numbers = [row.number for row in running if row.number is not None]
        for row in running:
            self._by_number.pop(row.number or 0, None)
            row.number = None
        if self._life == self._server.life:
            self._server.abort(numbers)
