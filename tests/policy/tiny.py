"""Make a policy that compiles quickly, and an independent forward pass in NumPy float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollcast.policy.config import ModelConfig, YarnScaling
from rollcast.policy.params import Params

TINY = ModelConfig(
    vocabulary_size=11, layers=2, width=16, query_heads=4, key_value_heads=2, head_size=8, feed_forward_width=24
)

TINY_EXPERTS = TINY.model_copy(
    update={"experts": 6, "experts_per_token": 2, "expert_width": 8, "balance_coefficient": 0.01}
)


def reference_logits(config: ModelConfig, params: Params, tokens: list[int]) -> np.ndarray[Any, Any]:
    """Return logits f64 [time, vocabulary] of one unpadded sequence, after the papers, head by head."""
    weights = {name: np.asarray(value, np.float64) for name, value in params.items()}
    x = weights["embedding"][tokens]
    for layer in range(config.layers):
        block = {
            name.removeprefix(f"layers.{layer}."): value
            for name, value in weights.items()
            if name.startswith(f"layers.{layer}.")
        }
        x = x + _attention(config, block, _norm(config, x, block["attention_norm.scale"]))
        normal = _norm(config, x, block["feed_forward_norm.scale"])
        if config.experts:
            x = x + np.stack([_mixture(config, block, token) for token in normal])
        else:
            x = x + _swiglu(normal, *(block[f"feed_forward.{name}.kernel"] for name in ("gate", "up", "down")))
    head = weights["embedding"].T if config.tied_embeddings else weights["head.kernel"]
    logits: np.ndarray[Any, Any] = _norm(config, x, weights["final_norm.scale"]) @ head
    return logits


def _mixture(config: ModelConfig, block: dict[str, np.ndarray[Any, Any]], token: np.ndarray[Any, Any]) -> Any:
    """Return the output [width] of one token's experts, one after the other."""
    scores = np.exp(token @ block["feed_forward.router.kernel"])
    chosen = np.argsort(-scores)[: config.experts_per_token]
    total = scores[chosen].sum() if config.normalised_routes else scores.sum()
    kernels = [block[f"feed_forward.expert_{name}.kernel"] for name in ("gate", "up", "down")]
    return sum(scores[one] / total * _swiglu(token, *(kernel[one] for kernel in kernels)) for one in chosen)


def _swiglu(
    x: np.ndarray[Any, Any], gate: np.ndarray[Any, Any], up: np.ndarray[Any, Any], down: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    inner = x @ gate
    result: np.ndarray[Any, Any] = (inner / (1.0 + np.exp(-inner)) * (x @ up)) @ down
    return result


def _norm(config: ModelConfig, x: np.ndarray[Any, Any], scale: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    normal: np.ndarray[Any, Any] = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_epsilon) * scale
    return normal


def _attention(
    config: ModelConfig, block: dict[str, np.ndarray[Any, Any]], x: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    size, time = config.head_size, len(x)
    heads = []
    for head in range(config.query_heads):
        shared = head // (config.query_heads // config.key_value_heads)
        own, kv = slice(head * size, (head + 1) * size), slice(shared * size, (shared + 1) * size)
        query, key, value = (
            _project(block, name, x, part) for name, part in (("query", own), ("key", kv), ("value", kv))
        )
        if config.qk_norm:
            query = _norm(config, query, block["attention.query_norm.scale"])
            key = _norm(config, key, block["attention.key_norm.scale"])
        scores = _rotate(config, query) @ _rotate(config, key).T / np.sqrt(size)
        scores = np.where(np.tril(np.ones((time, time), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(weights / weights.sum(-1, keepdims=True) @ value)
    mixed: np.ndarray[Any, Any] = np.concatenate(heads, -1) @ block["attention.output.kernel"]
    return mixed


def _project(
    block: dict[str, np.ndarray[Any, Any]], name: str, x: np.ndarray[Any, Any], part: slice
) -> np.ndarray[Any, Any]:
    projected: np.ndarray[Any, Any] = x @ block[f"attention.{name}.kernel"][:, part]
    return projected + block.get(f"attention.{name}.bias", np.zeros(10_000))[part]


def _rotate(config: ModelConfig, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Multiply the pairs (i, i + size/2) as complex numbers by exp(i * position * frequency)."""
    half = config.head_size // 2
    frequencies = np.array([_frequency(config, config.rope_base ** (-2.0 * i / config.head_size)) for i in range(half)])
    if isinstance(config.rope_scaling, YarnScaling):
        x = x * (config.rope_scaling.attention_factor or 0.1 * np.log(config.rope_scaling.factor) + 1)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * np.outer(np.arange(len(x)), frequencies))
    return np.concatenate([turned.real, turned.imag], -1)


def _frequency(config: ModelConfig, plain: float) -> float:
    """Stretch a frequency by cases, as the Llama 3.1 reference implementation does, or by YaRN."""
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if isinstance(scaling, YarnScaling):
        own, first, last = (
            -np.log(frequency) / np.log(config.rope_base) * config.head_size / 2
            for frequency in (plain, *(2 * np.pi * t / scaling.original_context for t in (scaling.turns_max, 1)))
        )
        stretched = float(np.clip((own - np.floor(first)) / (np.ceil(last) - np.floor(first)), 0, 1))
        return plain * (1 - stretched) + plain / scaling.factor * stretched
    wavelength = 2 * np.pi / plain
    if wavelength < scaling.original_context / scaling.high_frequency_factor:
        return plain
    if wavelength > scaling.original_context / scaling.low_frequency_factor:
        return plain / scaling.factor
    spread = scaling.high_frequency_factor - scaling.low_frequency_factor
    smooth = (scaling.original_context / wavelength - scaling.low_frequency_factor) / spread
    return float((1 - smooth) * plain / scaling.factor + smooth * plain)
