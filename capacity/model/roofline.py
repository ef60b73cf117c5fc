"""Estimate the tokens a GPU generates from its memory bandwidth, its arithmetic and the size of the model.

Each step of an engine reads the weights once, or is busy with two operations per weight and rollout, whichever takes
longer; it reads every rollout's keys and values, reads the prompts of new rollouts at two operations per weight and
token, launches kernels per layer, and samples per rollout. GPUs that share a model exchange activations twice a layer:

    weights  = weights / (share bandwidth)                  compute  = 2 parameters concurrency / (share flops)
    cache    = concurrency context kv_bytes / (share bandwidth)
    prompts  = compute prompt_per_token                     exchange = layers (latency + bytes / link)
    ms/token = 1000 (max(weights, compute) + cache + prompts + layers t_layer + concurrency t_rollout + exchange) / e

The shares and times are fitted to vLLM (`python -m bench throughput`, docs/capacity-model.md); e is the speed of one
GPU or engine relative to that. Sources of the method: the roofline of Williams, Waterman and Patterson (2009), applied
to decoding as in Pope et al., "Efficiently scaling transformer inference" (2022), section 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from capacity.model.lengths import LengthDistribution, generation_times
from capacity.model.workers import Speed

Links = Literal["pcie", "nvlink"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU by its data sheet: dense bf16 operations per second, bytes of memory, bytes per second from memory.

    ``links``: what GPUs of one machine exchange activations over; PCIe without peer access in consumers' machines.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_second: float
    flops_per_second: float
    links: Links = "pcie"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder, described by the bytes that decoding moves.

    Args:
        parameters: of the whole model, which a worker holds and receives.
        active_parameters: that one token passes through; fewer than all for a mixture of experts.
        layers, kv_heads, head_dim: of its attention's cache.
        bytes_per_parameter: 2 for bf16, 1 for fp8.
        bytes_per_cached: of one number in the cache.
        adapter_parameters: per rank, of adapters on every linear layer that can have one; 0: not known.
        width: of the residual stream, which is the size of each norm's scale; 0: not known.
    """

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    active_parameters: float = 0.0
    bytes_per_parameter: float = 2.0
    bytes_per_cached: float = 2.0
    adapter_parameters: float = 0.0
    width: int = 0

    def adapter_bytes(self, rank: int, *, noisy: bool = False) -> float:
        """Return the bytes of adapters of this rank in bf16, which is M of one keyframe in a run that trains them.

        With noise each version also has the scales of the two norms of every layer.
        """
        scales = 2.0 * self.layers * self.width if noisy else 0.0
        return 2.0 * (rank * self.adapter_parameters + scales)

    @property
    def weight_bytes(self) -> float:
        """Bytes of the whole model's weights, which is also M of one keyframe."""
        return self.parameters * self.bytes_per_parameter

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token's keys and values in all layers."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_cached

    @property
    def computed_parameters(self) -> float:
        """Parameters that each token is multiplied with."""
        return self.active_parameters or self.parameters


Weights = Literal["bf16", "fp8", "int4"]

#: Bytes of one parameter as an engine holds it: int4 has a 16-bit scale and zero point for each group of 128.
WEIGHT_BYTES: Mapping[Weights, float] = {"bf16": 2.0, "fp8": 1.0, "int4": 0.53}


@dataclass(frozen=True, slots=True)
class TimedDecode:
    """One measurement: so many rollouts at once, at this mean context in tokens, took so many ms a token each.

    ``prompt_per_token``: tokens of prompts that were read per token generated meanwhile; ``gpus`` share the model.
    """

    gpu: Gpu
    model: ModelShape
    concurrency: float
    context: float
    ms_per_token: float
    prompt_per_token: float = 0.0
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine makes of the hardware, fitted to measurements of vLLM.

    Args:
        weights_share, cache_share: of the memory bandwidth, while weights and while caches are read.
        compute_share: of the dense bf16 operations per second.
        layer_s: seconds per layer and step for kernels that the roofline does not know.
        rollout_s: seconds per rollout and step: sampling and bookkeeping.
        exchange_s: seconds per layer of GPUs that share a model, by link.
        exchange_bytes_per_second: rate of their activations, by link.
    """

    weights_share: float
    cache_share: float
    compute_share: float
    layer_s: float
    rollout_s: float
    exchange_s: Mapping[Links, float]
    exchange_bytes_per_second: Mapping[Links, float]


VLLM = Engine(0.87, 0.79, 0.80, 37e-6, 7e-6, {"pcie": 190e-6, "nvlink": 98e-6}, {"pcie": 2.7e9, "nvlink": 47e9})
#: Speed, relative to ``VLLM``, of a GPU or an engine without timed decodes.
UNTIMED_EFFICIENCY = 1.0
_ACTIVATION_BYTES = 2.0
#: Share of the GPU's memory that weights and cache may take; vLLM's gpu_memory_utilization has the same default.
MEMORY_SHARE = 0.9


def decode_ms_per_token(
    gpu: Gpu,
    model: ModelShape,
    concurrency: float,
    context: float,
    efficiency: float = UNTIMED_EFFICIENCY,
    *,
    prompt_per_token: float = 0.0,
    gpus: int = 1,
    engine: Engine = VLLM,
) -> float:
    """Return the milliseconds between two tokens of one rollout.

    Args:
        concurrency: rollouts in flight; a fraction where it is a mean.
        context: tokens that each of them has so far on average, the prompt included.
        efficiency: speed relative to the engine's, see fit_efficiency.
        prompt_per_token: tokens of prompts read per token generated: mean prompt / mean rollout.
        gpus: that share the model.

    Raises:
        ValueError: concurrency or efficiency is not positive, or a number of tokens is negative.
    """
    if not concurrency > 0 or not efficiency > 0 or not context >= 0 or not prompt_per_token >= 0:
        raise ValueError("concurrency and efficiency must be positive, context and prompts not negative")
    bandwidth, flops = gpu.bandwidth_bytes_per_second * gpus, gpu.flops_per_second * gpus
    weights_s = model.weight_bytes * _share_read(model, concurrency) / (bandwidth * engine.weights_share)
    cache_s = concurrency * context * model.kv_bytes_per_token / (bandwidth * engine.cache_share)
    compute_s = 2.0 * model.computed_parameters * concurrency / (flops * engine.compute_share)
    step_s = max(weights_s, compute_s) + cache_s + compute_s * prompt_per_token
    step_s += model.layers * engine.layer_s + concurrency * engine.rollout_s
    if gpus > 1:
        step_s += _exchange_s(gpu, model, concurrency * (1.0 + prompt_per_token), engine)
    return 1000.0 * step_s / efficiency


def _exchange_s(gpu: Gpu, model: ModelShape, tokens: float, engine: Engine) -> float:
    """Return the seconds in which GPUs exchange so many tokens' activations; a layer has 12 width^2 weights."""
    width = math.sqrt(model.computed_parameters / (12.0 * model.layers))
    sent_s = tokens * width * _ACTIVATION_BYTES / engine.exchange_bytes_per_second[gpu.links]
    return model.layers * (engine.exchange_s[gpu.links] + sent_s)


def fit_efficiency(timed: TimedDecode) -> float:
    """Return the efficiency with which ``decode_ms_per_token`` reproduces this measurement.

    Raises:
        ValueError: the time is not positive, see also decode_ms_per_token.
    """
    if not timed.ms_per_token > 0:
        raise ValueError("ms_per_token must be positive")
    return predicted_ms(timed, efficiency=1.0) / timed.ms_per_token


def predicted_ms(timed: TimedDecode, efficiency: float, engine: Engine = VLLM) -> float:
    """Return the milliseconds per token that the roofline predicts for a measurement's setting."""
    return decode_ms_per_token(
        timed.gpu,
        timed.model,
        timed.concurrency,
        timed.context,
        efficiency,
        prompt_per_token=timed.prompt_per_token,
        gpus=timed.gpus,
        engine=engine,
    )


def concurrency_max(gpu: Gpu, model: ModelShape, context: float, gpus: int = 1) -> int:
    """Return how many rollouts of this mean context fit besides one copy of the weights, which versions take turns in.

    0 if the weights alone do not fit. ``gpus`` share the copy.
    """
    free_bytes = MEMORY_SHARE * gpu.memory_bytes * gpus - model.weight_bytes
    cache_bytes = max(1.0, context) * model.kv_bytes_per_token
    return max(0, int(free_bytes / cache_bytes))


def speeds_of(
    gpu: Gpu,
    model: ModelShape,
    lengths: LengthDistribution,
    concurrencies: Sequence[int],
    efficiency: float = UNTIMED_EFFICIENCY,
    *,
    prompt_tokens: float = 0.0,
    gpus: int = 1,
) -> tuple[Speed, ...]:
    """Return a GPU's speed at each concurrency whose cache fits into its memory, ascending; empty if none fits.

    A slot is refilled as soon as its rollout ends, so the mean context is the prompt and what a rollout under way has
    made so far, and mu is the concurrency over the mean seconds of a rollout. The reading of prompts is spread over the
    tokens.

    Args:
        lengths: of what is generated, tokens.
        prompt_tokens: mean length of a prompt.
        gpus: that share the model; the speed is that of all of them.

    Raises:
        ValueError: see decode_ms_per_token.
    """
    context = prompt_tokens + lengths.mean_made_so_far
    fitting = concurrency_max(gpu, model, context, gpus)
    prompt_per_token = prompt_tokens / lengths.mean
    speeds = []
    for concurrency in sorted(set(concurrencies)):
        if concurrency > fitting:
            break
        pace_ms = decode_ms_per_token(
            gpu, model, concurrency, context, efficiency, prompt_per_token=prompt_per_token, gpus=gpus
        )
        times = generation_times(lengths, ms_per_token=pace_ms)
        reread_s = 2.0 * model.computed_parameters * concurrency * context / gpu.flops_per_second / efficiency
        speeds.append(Speed(concurrency, concurrency / times.mean_s, times.p90_s, times.mean_s, reread_s))
    return tuple(speeds)


def _share_read(model: ModelShape, concurrency: float) -> float:
    """Return the share of the weights that one step reads: in a mixture of experts, those that any token is routed to.

    It is the expected share if each token picks its experts uniformly and independently.
    """
    return float(1.0 - (1.0 - model.computed_parameters / model.parameters) ** concurrency)
