"""The JAX rollout engine: the policy's own sampler, in one thread, with a second one that loads the next version."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax
from pydantic import ValidationError

from peer.engines.base import GeneratedRollout, GenerateRequest, WarmUp
from rollcast.policy.compilation import use_compilation_cache
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.sampler import Completion, Sampler, SampleRequest
from rollcast.policy.snapshot import freeze, thaw
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.records import VersionRecord, state_hash
from rollcast.wire.rollouts import Sampling

# Lengths without a warm-up are rounded up to a power of two from here, so that few shapes are ever compiled.
_LENGTH_MIN = 16
# Shapes kept compiled; a run has one or two.
_SHAPES_MAX = 16


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
        self._compiled: set[Sampler] = set()
        self._generating = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")

    def expect(self, work: WarmUp) -> None:
        """Loads from now on compile for this work before they return."""
        self._work = work

    async def load(self, record: VersionRecord, state: memoryview) -> bytes:
        """Put the weights on the device and compile (see Engine.load)."""
        work = self._work
        loop = asyncio.get_running_loop()
        loaded, loaded_hash = await loop.run_in_executor(self._loading, self._load, record, state, work)
        self._beside = loaded
        return loaded_hash

    async def activate(self, version: Version) -> None:
        """Swap by one assignment: a batch reads the active version once, when it starts (see Engine.activate)."""
        if self._beside is None or self._beside.version != version:
            raise ValueError(f"version {version} is not loaded")
        if self._active is not None and version <= self._active.version:
            raise ValueError(f"version {version} is not newer than {self._active.version}")
        self._active, self._beside = self._beside, None

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[GeneratedRollout]:
        """One batch for each set of sampling parameters (see Engine.generate)."""
        if self._active is None:
            raise ValueError("no version is active")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._generating, self._generate, self._active, tuple(requests))

    @property
    def hardware(self) -> str:
        """The kind of jax's devices."""
        devices = jax.devices()
        return f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"

    @property
    def active_version(self) -> Version | None:
        """The version that the next batch will be generated with."""
        return None if self._active is None else self._active.version

    async def close(self) -> None:
        """Forget the weights; a batch still running ends in its thread."""
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
            one_token = Sampling(work.sampling.temperature, 1, work.sampling.stop_token_ids)
            sampler.generate(loaded.params, [SampleRequest((0,), seed=0)], one_token)
            self._compiled.add(sampler)

    def _generate(self, active: _Loaded, requests: tuple[GenerateRequest, ...]) -> list[GeneratedRollout]:
        alike: dict[Sampling, list[int]] = {}
        for index, request in enumerate(requests):
            alike.setdefault(request.sampling, []).append(index)
        rollouts: dict[int, GeneratedRollout] = {}
        for sampling, indices in alike.items():
            begun_s = time.monotonic()
            completions = self._draw(active, sampling, [requests[index] for index in indices])
            seconds = time.monotonic() - begun_s
            for index, completion in zip(indices, completions, strict=True):
                rollouts[index] = GeneratedRollout(
                    epoch=active.epoch,
                    version=active.version,
                    token_ids=completion.token_ids,
                    logprobs=completion.logprobs,
                    finish_reason=completion.finish_reason,
                    seconds=seconds,
                )
        return [rollouts[index] for index in range(len(requests))]

    def _draw(self, active: _Loaded, sampling: Sampling, requests: list[GenerateRequest]) -> list[Completion]:
        longest = max(len(request.prompt_token_ids) for request in requests)
        sampler = self._sampler(active.config, longest, sampling.max_new_tokens)
        asked = [SampleRequest(item.prompt_token_ids, item.seed, item.already_generated) for item in requests]
        return sampler.generate(active.params, asked, sampling)

    def _sampler(self, config: ModelConfig, prompt_tokens: int, new_tokens: int) -> Sampler:
        work = self._work
        if work and prompt_tokens <= work.prompt_tokens_max and new_tokens <= work.sampling.max_new_tokens:
            return _sampler(config, work.prompt_tokens_max, work.sampling.max_new_tokens, self._rows)
        return _sampler(config, _rounded_up(prompt_tokens), _rounded_up(new_tokens), self._rows)


@functools.lru_cache(maxsize=_SHAPES_MAX)
def _sampler(config: ModelConfig, prompt_tokens_max: int, new_tokens_max: int, rows: int) -> Sampler:
    """Compiled code hangs on the sampler, so every engine of a process shares it."""
    return Sampler(config, prompt_tokens_max, new_tokens_max, rows)


def _rounded_up(length: int) -> int:
    return max(_LENGTH_MIN, 1 << (length - 1).bit_length())
