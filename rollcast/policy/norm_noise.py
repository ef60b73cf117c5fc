"""Noise on the scales of norms, with which a run's rollouts explore (Huang et al. 2025, "QeRL", section 3.3).

A block's two norms scale what its products of attention and feed-forward read, so noise on a scale is noise on the rows
of all kernels behind it (equation 10). Each version that a run with adapters publishes has noise of its own: the noisy
scales are tensors of the version, and everybody computes its rollouts' log-probabilities with them. The policy that is
trained has none. No jax is needed here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollcast.policy.config import LoraConfig, ModelConfig
from rollcast.policy.shapes import Shapes

_NORMS = ("attention_norm.scale", "feed_forward_norm.scale")
_STREAM = 0x6E6F726D  # separates the seed's random numbers from those of base and adapters

Array = np.ndarray[Any, Any]


def noisy_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of every scale that has noise by name; empty for a run without noise."""
    if config.lora is None or not config.lora.noisy:
        return {}
    return {f"layers.{layer}.{norm}": (config.width,) for layer in range(config.layers) for norm in _NORMS}


def noise_deviation(lora: LoraConfig, version: int) -> float:
    """Return the standard deviation of a version's noise (equation 8).

    The steps are divided into equal stages. The first has no noise; in those after it the deviation falls from
    ``noise_start`` to ``noise_end`` by the same factor from each to the next, and it stays there afterwards.

    Args:
        version: the version, which is the number of learner steps that it was trained for.
    """
    stage = min(version * lora.noise_stages // lora.noise_steps, lora.noise_stages - 1) if lora.noisy else 0
    if stage == 0:
        return 0.0
    share = (stage - 1) / (lora.noise_stages - 2)
    return float(lora.noise_start * (lora.noise_end / lora.noise_start) ** share)


def norm_noise(config: ModelConfig, seed: int, version: int) -> dict[str, Array]:
    """Return what a version adds to the scales, f32 [layers, width] by stacked name; empty for a run without noise.

    It is normal with `noise_deviation`. The same seed and version give the same bits on every platform.
    """
    if config.lora is None or not config.lora.noisy:
        return {}
    random = np.random.Generator(np.random.Philox(key=[seed, _STREAM], counter=[0, 0, 0, version]))
    deviation, shape = np.float32(noise_deviation(config.lora, version)), (config.layers, config.width)
    return {f"layers.{norm}": deviation * random.standard_normal(shape, np.float32) for norm in _NORMS}
