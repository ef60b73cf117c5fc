"""Measure how fast this machine generates: with the peer's own engine, a model of the run's shape, and a few seconds.

The weights are zeros: what a token costs depends on shapes and dtypes, not on values. They need no download, and no
machine's memory is touched before they are read.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from peer.engines.base import Engine, GenerateRequest, Generation, VersionState, WarmUp
from rollcast.policy.config import ModelConfig
from rollcast.policy.shapes import parameter_count, parameter_shapes
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.rollouts import Sampling
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import TensorSpec, tensor_table

PROMPT_TOKENS = 64
SECONDS = 6.0  # of generation that are timed
DEADLINE_S = 420.0  # for all of it, loading and compiling included
_SLICE_S = 0.5  # as a peer at work generates, which can stop between two slices
_SLICE_TOKENS_FIRST = 8
_TOKEN = 3  # any token: the content of the prompt does not matter

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Decoded:
    """One measurement of decode speed.

    Args:
        tokens_per_s: rate of all rollouts together, prompts not counted.
        concurrent_rollouts: rollouts generated at once.
        parameters: number of the model's parameters.
        ready_s: seconds until the first token: loading, compiling, prefill.
        seconds, tokens: the time and the tokens from which ``tokens_per_s`` is computed.
        hardware: the hardware as the engine names it.
        computation: how the engine computes the model; see Engine.computation.
    """

    tokens_per_s: float
    concurrent_rollouts: int
    parameters: int
    ready_s: float
    seconds: float
    tokens: int
    hardware: str
    computation: str = ""


def decode_record(model: ModelConfig) -> tuple[VersionRecord, bytes]:
    """Return the record and the state of a version whose weights are zeros.

    Raises:
        ValueError: the model has no vocabulary.
        ImportError: quantised models need jax to be laid out.
    """
    if model.vocabulary_size < 1:
        raise ValueError("vocabulary_size is not set")
    tensors = _tensors(model)
    state = bytes(sum(tensor.size_bytes for tensor in tensors))
    record = VersionRecord(
        run_id=RunId("check"),
        epoch=Epoch(0),
        version=Version(0),
        parent_hash=b"",
        state_hash=state_hash(state),
        state_size_bytes=len(state),
        tensors=tensors,
        model_json=model.model_dump_json(),
    )
    return record, state


def _tensors(model: ModelConfig) -> tuple[TensorSpec, ...]:
    if not model.precision.startswith("fp8") and not model.has_packed_base:
        return tensor_table((name, model.carrier_dtype, shape) for name, shape in parameter_shapes(model).items())
    from rollcast.policy.params import abstract_snapshot

    return tensor_table((name, str(leaf.dtype), leaf.shape) for name, leaf in sorted(abstract_snapshot(model).items()))


async def timed_decode(
    engine: Engine,
    model: ModelConfig,
    *,
    concurrent_rollouts: int,
    new_tokens: int,
    seconds: float = SECONDS,
    progress: Progress = lambda _: None,
) -> Decoded:
    """Generate rollouts for about ``seconds``, and return the speed.

    Args:
        concurrent_rollouts: rollouts generated at once.
        new_tokens: tokens of each rollout at most.
        seconds: seconds of generation that are timed.
        progress: called with each step as text.

    Raises:
        WaitTimedOut: loading, compiling and generating took longer than DEADLINE_S.
        MalformedMessage, CacheTooSmall: the engine cannot run this model.
    """
    sampling = Sampling(1.0, new_tokens, ())
    record, state = await asyncio.to_thread(decode_record, model)
    async with deadline(DEADLINE_S, "a short decode", fix="try a smaller model, or fewer concurrent rollouts"):
        begun_s = time.monotonic()
        engine.expect(WarmUp(PROMPT_TOKENS, sampling))
        progress(f"loading and compiling a model of {parameter_count(model):,} parameters")
        await engine.load(VersionState(record, memoryview(state)))
        await engine.activate(record.version)
        asked = [GenerateRequest((_TOKEN,) * PROMPT_TOKENS, seed, sampling) for seed in range(concurrent_rollouts)]
        generation = engine.begin(asked)
        await generation.next_slice(1)
        ready_s = time.monotonic() - begun_s
        progress(f"generating {concurrent_rollouts} rollouts at once for about {seconds:g} s")
        tokens, took_s = await _generated(generation, concurrent_rollouts, new_tokens, seconds)
    return Decoded(
        tokens / max(took_s, 1e-9),
        concurrent_rollouts,
        parameter_count(model),
        ready_s,
        took_s,
        tokens,
        engine.hardware,
        await asyncio.to_thread(engine.computation, model),
    )


async def _generated(generation: Generation, rollouts: int, new_tokens: int, seconds: float) -> tuple[int, float]:
    """Return the tokens generated and the seconds they took; end early if all rollouts have ended.

    The first slice is not counted, because it compiles, unless all rollouts end in it.
    """
    tokens, took_s, size, ended = 0, 0.0, _SLICE_TOKENS_FIRST, 0
    warm = False
    while took_s < seconds and ended < rollouts:
        started_s = time.monotonic()
        slices = await generation.next_slice(size)
        slice_s = time.monotonic() - started_s
        made = sum(len(one.token_ids) for one in slices)
        ended += sum(one.finish_reason is not None for one in slices)
        if warm or ended == rollouts:
            tokens, took_s = tokens + made, took_s + slice_s
        warm = True
        size = max(1, min(new_tokens, math.floor(size * min(4.0, _SLICE_S / max(slice_s, 1e-3)))))
    return tokens, took_s
