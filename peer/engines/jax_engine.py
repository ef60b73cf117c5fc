"""The JAX rollout engine: the policy's own sampler, in one thread, with a second one that loads the next version."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax
from pydantic import ValidationError

from peer.engines.base import Drawn, GenerateRequest, WarmUp
from rollcast.policy.compilation import use_compilation_cache
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.sampler import Sampler, SampleRequest
from rollcast.policy.snapshot import freeze, thaw
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.records import VersionRecord, state_hash
from rollcast.wire.rollouts import Sampling

# Lengths without a warm-up are rounded up to a power of two from here, so that few shapes are ever compiled.
_LENGTH_MIN = 16
# Shapes kept compiled; a run has one or two.
_SHAPES_MAX = 16
# Every request brings its own.
_NO_SAMPLING = Sampling(1.0, 1, ())


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One version's weights on the device."""

    epoch: Epoch
    version: Version
    config: ModelConfig
    params: Params


class JaxEngine:
    """See peer.engines.base.Engine. Draws ``concurrent_rollouts`` rows at a time; cache_tokens: see Sampler."""

    def __init__(
        self, *, concurrent_rollouts: int, compilation_cache: Path | None = None, cache_tokens: int = 0
    ) -> None:
        if compilation_cache is not None:
            use_compilation_cache(compilation_cache)
        self._rows = concurrent_rollouts
        self._cache_tokens = cache_tokens
        self._work: WarmUp | None = None
        self._active: _Loaded | None = None
        self._beside: _Loaded | None = None
        self._compiled: set[Sampler] = set()
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
        """As many at a time as there are rows (see Engine.begin)."""
        if self._active is None:
            raise ValueError("no version is active")
        if any(len(item.already_generated) >= item.sampling.max_new_tokens for item in requests):
            raise ValueError("a request leaves nothing to draw")
        return JaxGeneration(self, self._active, tuple(requests))

    @property
    def hardware(self) -> str:
        """The kind of jax's devices."""
        devices = jax.devices()
        return f"jax {jax.__version__}, {len(devices)} x {devices[0].device_kind} ({devices[0].platform})"

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
        if sampler not in self._compiled:
            sampler.compile(loaded.params)
            self._compiled.add(sampler)

    def _sampler(self, config: ModelConfig, prompt_tokens: int, new_tokens: int) -> Sampler:
        work = self._work
        if work and prompt_tokens <= work.prompt_tokens_max and new_tokens <= work.sampling.max_new_tokens:
            return _sampler(
                config, work.prompt_tokens_max, work.sampling.max_new_tokens, self._rows, self._cache_tokens
            )
        return _sampler(config, _rounded_up(prompt_tokens), _rounded_up(new_tokens), self._rows, self._cache_tokens)


class JaxGeneration:
    """See peer.engines.base.Generation. One cache serves all requests: what does not fit beside the others waits."""

    def __init__(self, engine: JaxEngine, weights: _Loaded, requests: tuple[GenerateRequest, ...]) -> None:
        self._engine = engine
        self._weights = weights
        longest = max((len(request.prompt_token_ids) for request in requests), default=1)
        most_new = max((request.sampling.max_new_tokens for request in requests), default=1)
        sampler = engine._sampler(weights.config, longest, most_new)
        decode = None if engine._work is None else engine._work.decode
        asked = [_sample_request(item) for item in requests]
        self._drawing = sampler.begin(weights.params, asked, _NO_SAMPLING, decode=decode)
        self._drawn_with = weights

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        """More requests, for rows that become free (see Generation.add)."""
        self._drawing.add([_sample_request(item) for item in requests])

    async def draw(self, tokens_max: int) -> list[Drawn]:
        """One slice, in the engine's thread (see Generation.draw)."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._engine._generating, self._draw, self._weights, tokens_max)

    def renew(self) -> None:
        """Take the active weights; the next slice reads again what was drawn (see Generation.renew)."""
        if self._engine._active is not None:
            self._weights = self._engine._active

    def _draw(self, weights: _Loaded, tokens_max: int) -> list[Drawn]:
        if self._drawn_with is not weights:
            self._drawing.renew(weights.params)
        self._drawn_with = weights
        return [
            Drawn(number, weights.epoch, weights.version, made.token_ids, made.logprobs, made.finish_reason)
            for number, made in self._drawing.draw(tokens_max).items()
        ]


def _sample_request(item: GenerateRequest) -> SampleRequest:
    return SampleRequest(item.prompt_token_ids, item.seed, item.already_generated, item.sampling)


@functools.lru_cache(maxsize=_SHAPES_MAX)
def _sampler(config: ModelConfig, prompt_tokens_max: int, new_tokens_max: int, rows: int, cache_tokens: int) -> Sampler:
    """Compiled code hangs on the sampler, so every engine of a process shares it."""
    return Sampler(config, prompt_tokens_max, new_tokens_max, rows, cache_tokens)


def _rounded_up(length: int) -> int:
    return max(_LENGTH_MIN, 1 << (length - 1).bit_length())
