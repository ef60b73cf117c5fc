"""The JAX rollout engine: the policy's own sampler, in one thread, with a second one that loads the next version."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax
from pydantic import ValidationError

from peer.engines.base import Drawn, GenerateRequest, WarmUp
from rollcast.policy.compilation import use_compilation_cache
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.sampler import Completion, Drawing, Sampler, SampleRequest
from rollcast.policy.snapshot import freeze, thaw
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.records import VersionRecord, state_hash
from rollcast.wire.rollouts import FinishReason, Sampling

# Lengths without a warm-up are rounded up to a power of two from here, so that few shapes are ever compiled.
_LENGTH_MIN = 16
# Shapes kept compiled; a run has one or two.
_SHAPES_MAX = 16
_NOTHING_NEW = Completion((), (), None)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One version's weights on the device."""

    epoch: Epoch
    version: Version
    config: ModelConfig
    params: Params


class JaxEngine:
    """See peer.engines.base.Engine. Batches have a fixed shape of ``concurrent_rollouts`` rows."""

    def __init__(self, *, concurrent_rollouts: int, compilation_cache: Path | None = None) -> None:
        if compilation_cache is not None:
            use_compilation_cache(compilation_cache)
        self._rows = concurrent_rollouts
        self._work: WarmUp | None = None
        self._active: _Loaded | None = None
        self._beside: _Loaded | None = None
        self._compiled: set[tuple[Sampler, bool]] = set()
        self._generating = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")

    def expect(self, work: WarmUp) -> None:
        """Loads from now on compile for this work before they return."""
        self._work = work

    async def load(self, record: VersionRecord, state: memoryview) -> bytes:
        """Put the weights on the device and compile (see Engine.load)."""
        self._beside = None  # never three versions in the device's memory
        work = self._work
        loop = asyncio.get_running_loop()
        loaded, loaded_hash = await loop.run_in_executor(self._loading, self._load, record, state, work)
        self._beside = loaded
        return loaded_hash

    async def activate(self, version: Version) -> None:
        """Swap by one assignment: a generation reads it when it begins or is renewed (see Engine.activate)."""
        if self._beside is None or self._beside.version != version:
            raise ValueError(f"version {version} is not loaded")
        if self._active is not None and version <= self._active.version:
            raise ValueError(f"version {version} is not newer than {self._active.version}")
        self._active, self._beside = self._beside, None

    def begin(self, requests: Sequence[GenerateRequest]) -> JaxGeneration:
        """One batch for each set of sampling parameters, one batch after the other (see Engine.begin)."""
        if self._active is None:
            raise ValueError("no version is active")
        if any(len(item.already_generated) >= item.sampling.max_new_tokens for item in requests):
            raise ValueError("a request leaves nothing to draw")
        return JaxGeneration(self, self._active, tuple(requests))

    @property
    def hardware(self) -> str:
        """The kind of jax's devices."""
        devices = jax.devices()
        return f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"

    @property
    def active_version(self) -> Version | None:
        """The version that the next generation begins with."""
        return None if self._active is None else self._active.version

    async def close(self) -> None:
        """Forget the weights; a slice still running ends in its thread."""
        self._generating.shutdown(wait=False, cancel_futures=True)
        self._loading.shutdown(wait=False, cancel_futures=True)
        self._active = self._beside = None

    def _load(self, record: VersionRecord, state: memoryview, work: WarmUp | None) -> tuple[_Loaded, bytes]:
        try:
            config = ModelConfig.model_validate_json(record.model_json)
        except ValidationError as error:
            raise MalformedMessage(
                f"version {record.version} describes a model that this release cannot run",
                cause=str(error.errors()[0]["msg"]),
                fix="run the same release on the learner and on the peers",
            ) from None
        # A copy: the store may drop its file while the device arrays still share the memory they came from.
        params = thaw(config, record.tensors, bytes(state))
        loaded = _Loaded(record.epoch, record.version, config, params)
        if work is not None:
            self._compile(loaded, work)
        return loaded, state_hash(freeze(config, params).state_bytes)

    def _compile(self, loaded: _Loaded, work: WarmUp) -> None:
        sampler = self._sampler(loaded.config, work.prompt_tokens_max, work.sampling.max_new_tokens)
        if (sampler, work.renews) not in self._compiled:
            endless = Sampling(work.sampling.temperature, work.sampling.max_new_tokens, stop_token_ids=())
            drawing = sampler.begin(loaded.params, [SampleRequest((0,), seed=0)], endless)
            drawing.draw(1)
            if work.renews:
                drawing.renew(loaded.params)
            self._compiled.add((sampler, work.renews))

    def _sampler(self, config: ModelConfig, prompt_tokens: int, new_tokens: int) -> Sampler:
        work = self._work
        if work and prompt_tokens <= work.prompt_tokens_max and new_tokens <= work.sampling.max_new_tokens:
            return _sampler(config, work.prompt_tokens_max, work.sampling.max_new_tokens, self._rows)
        return _sampler(config, _rounded_up(prompt_tokens), _rounded_up(new_tokens), self._rows)


class JaxGeneration:
    """See peer.engines.base.Generation. One batch is drawn after the other, so that one cache is on the device."""

    def __init__(self, engine: JaxEngine, weights: _Loaded, requests: tuple[GenerateRequest, ...]) -> None:
        self._engine = engine
        self._weights = weights
        self._requests = requests
        self._ended: list[FinishReason | None] = [None] * len(requests)
        self._batches = deque(_batches(requests, engine._rows))
        self._drawing: Drawing | None = None
        self._drawn_with = weights

    async def draw(self, tokens_max: int) -> list[Drawn]:
        """One slice, in the engine's thread (see Generation.draw)."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._engine._generating, self._draw, self._weights, tokens_max)

    def renew(self) -> None:
        """Take the active weights; the next slice reads again what was drawn (see Generation.renew)."""
        if self._engine._active is not None:
            self._weights = self._engine._active

    def _draw(self, weights: _Loaded, tokens_max: int) -> list[Drawn]:
        if not self._batches:
            return self._news(weights, {})
        indices = self._batches[0]
        if self._drawing is None:
            self._drawing = self._begin([self._requests[index] for index in indices], weights)
        elif self._drawn_with is not weights:
            self._drawing.renew(weights.params)
        self._drawn_with = weights
        completions = dict(zip(indices, self._drawing.draw(tokens_max), strict=True))
        if self._drawing.finished:
            self._batches.popleft()
            self._drawing = None
        return self._news(weights, completions)

    def _begin(self, requests: list[GenerateRequest], weights: _Loaded) -> Drawing:
        longest = max(len(request.prompt_token_ids) for request in requests)
        sampling = requests[0].sampling
        sampler = self._engine._sampler(weights.config, longest, sampling.max_new_tokens)
        asked = [SampleRequest(item.prompt_token_ids, item.seed, item.already_generated) for item in requests]
        return sampler.begin(weights.params, asked, sampling)

    def _news(self, weights: _Loaded, completions: dict[int, Completion]) -> list[Drawn]:
        news: list[Drawn] = []
        for index in range(len(self._requests)):
            made = completions.get(index, _NOTHING_NEW)
            self._ended[index] = made.finish_reason or self._ended[index]
            news.append(Drawn(weights.epoch, weights.version, made.token_ids, made.logprobs, self._ended[index]))
        return news


def _batches(requests: Sequence[GenerateRequest], rows: int) -> Iterator[list[int]]:
    """Indices of requests that can be drawn together."""
    alike: dict[Sampling, list[int]] = {}
    for index, request in enumerate(requests):
        alike.setdefault(request.sampling, []).append(index)
    for indices in alike.values():
        for start in range(0, len(indices), rows):
            yield indices[start : start + rows]


@functools.lru_cache(maxsize=_SHAPES_MAX)
def _sampler(config: ModelConfig, prompt_tokens_max: int, new_tokens_max: int, rows: int) -> Sampler:
    """Compiled code hangs on the sampler, so every engine of a process shares it."""
    return Sampler(config, prompt_tokens_max, new_tokens_max, rows)


def _rounded_up(length: int) -> int:
    return max(_LENGTH_MIN, 1 << (length - 1).bit_length())
