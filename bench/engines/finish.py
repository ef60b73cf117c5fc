"""Compare two ways in which the jax engine's rollouts finish under their adapters while versions go by.

Rollouts of unlike lengths (log-normal, cut) keep every row busy, and a new version of adapters comes each time so many
tokens have been generated. In one way all rows end before the next version is used, and none is refilled meanwhile; in
the other, rollouts of two versions share the batch. ``finish_beside_per_drained`` is the tokens of the latter for each
second of processor time over those of the former, on the same requests. A decode step computes every row, refilled or
not, so that other programs on the machine do not change the ratio.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from bench.engines.common import engine_of, version_of
from peer.engines.base import CompletionSlice, Engine, GenerateRequest, Generation, VersionState, WarmUp
from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.lora import adapter_specs, initial_adapters
from rollcast.policy.params import initial_params
from rollcast.policy.snapshot import freeze
from rollcast.wire.rollouts import Sampling
from rollcast.wire.version_swap import AtVersionSwap
from rollcast.wire.versions.records import BaseRef

ROWS, PROMPT_TOKENS, RANK = 16, 16, 8
TOKENS_MAX, MEDIAN_TOKENS, DEVIATION = 128, 24, 1.0  # of the lengths; DEVIATION is of their logarithms
VERSIONS = 4
BATCHES_PER_VERSION = 3
SLICE_TOKENS = 8


async def finishing(model: ModelConfig, folder: Path) -> dict[str, float]:
    """Return the tokens of both ways for each second of processor time, and their ratio."""
    config = adapted(model, LoraConfig(rank=RANK, alpha=2.0 * RANK))
    versions = adapter_versions(config)
    speeds = {}
    modes: dict[str, AtVersionSwap] = {"drained": "continue", "beside": "finish"}
    for name, mode in modes.items():
        engine = engine_of("jax", ROWS, None, folder)
        engine.expect(WarmUp(PROMPT_TOKENS, Sampling(1.0, TOKENS_MAX, ()), at_version_swap=mode))
        try:
            speeds[name] = await Course(engine, versions, config.vocabulary_size).tokens_per_cpu_s()
        finally:
            await engine.close()
    figures = {f"finish_{name}_tokens_per_cpu_s": speed for name, speed in speeds.items()}
    return figures | {"finish_beside_per_drained": speeds["beside"] / speeds["drained"]}


class Course:
    """One course of rollouts through all versions. Whether they share batches is the engine's choice."""

    def __init__(self, engine: Engine, versions: list[VersionState], vocabulary: int) -> None:
        self._engine = engine
        self._versions = versions
        self._requests = requests(vocabulary)
        self._tokens = 0
        self._running = 0

    async def tokens_per_cpu_s(self) -> float:
        """Generate until each version has had its tokens; return all tokens over the seconds of processor time."""
        generation = await self._begin(0)
        begun_s = time.process_time()
        for number in range(1, VERSIONS + 1):
            due = number * BATCHES_PER_VERSION * ROWS * MEDIAN_TOKENS
            while self._tokens < due:
                await self._slice(generation, refill=True)
            if number == VERSIONS:
                break
            await self._engine.load(self._versions[number])
            while generation.versions_free == 0:
                await self._slice(generation, refill=True)
            if generation.versions_free:
                await self._engine.activate(self._versions[number].record.version)
                generation.renew("finish")
                continue
            while self._running:
                await self._slice(generation, refill=False)
            generation = await self._begin(number)
        return self._tokens / (time.process_time() - begun_s)

    async def _begin(self, number: int) -> Generation:
        """Begin a batch with a version."""
        if number == 0:
            await self._engine.load(self._versions[0])
        await self._engine.activate(self._versions[number].record.version)
        self._running = ROWS
        return self._engine.begin([next(self._requests) for _ in range(ROWS)])

    async def _slice(self, generation: Generation, *, refill: bool) -> None:
        """Generate a slice, and give rows that became free to new requests with ``refill``."""
        made: list[CompletionSlice] = await generation.next_slice(SLICE_TOKENS)
        ended = sum(one.finish_reason is not None for one in made)
        self._tokens += sum(len(one.token_ids) for one in made)
        self._running -= ended
        if refill and ended:
            generation.add([next(self._requests) for _ in range(ended)])
            self._running += ended


def requests(vocabulary: int) -> Iterator[GenerateRequest]:
    """Yield requests of unlike lengths, the same ones each time."""
    random = np.random.default_rng(0)
    for seed in count():
        tokens = int(np.clip(MEDIAN_TOKENS * np.exp(DEVIATION * random.standard_normal()), 1, TOKENS_MAX))
        prompt = tuple(map(int, random.integers(0, vocabulary, PROMPT_TOKENS)))
        yield GenerateRequest(prompt, seed, Sampling(1.0, tokens, ()))


def adapter_versions(config: ModelConfig) -> list[VersionState]:
    """Return a base and versions of adapters over it, VERSIONS in all."""
    frozen = freeze(config, initial_params(config, 0))
    base = version_of(config, 0, frozen.tensors, memoryview(frozen.state_bytes))
    versions = [base]
    for number in range(1, VERSIONS):
        made = initial_adapters(config, number)
        state = b"".join(made[spec.name].tobytes() for spec in adapter_specs(config))
        version = version_of(config, number, adapter_specs(config), memoryview(state))
        record = replace(version.record, base=BaseRef(base.record.version, base.record.state_hash))
        versions.append(replace(version, record=record, base=base))
    return versions
