"""Generate synthetic training updates that change published bytes as reinforcement learning does.

Layers have the shapes of a 4B model (Qwen3-4B: width 2560, 32 query and 8 key heads of 128, SwiGLU 9728), and weights
are distributed as in trained models: normal, with a scale of about 0.02 of its own for each matrix. Adam (b1 0.9, b2
0.999) acts on f32 masters with the moments of a long run. Gradients of one weight are normal and correlated from step
to step. A correlation of 0.3 (mean update 0.24 of the learning rate) changes as many bf16 values as real runs do,
1.0-1.4 % a step at a learning rate of 1e-6; 0 changes 0.9 %, 0.9 changes 2.6 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = list[tuple[str, str, Array]]  # name, dtype as in TensorSpec, values

WIDTH, QUERY_WIDTH, KEY_WIDTH, HIDDEN_WIDTH = 2560, 4096, 1024, 9728
FP8_BLOCK = 128
_FP8_LARGEST = 448.0
_BETA1, _BETA2 = 0.9, 0.999


def layer_shapes(divisor: int) -> dict[str, tuple[int, int]]:
    """Return the matrices of one layer, every width divided by ``divisor``; all sides stay multiples of 128."""
    width, query, key, hidden = (size // divisor for size in (WIDTH, QUERY_WIDTH, KEY_WIDTH, HIDDEN_WIDTH))
    return {
        "q": (width, query),
        "k": (width, key),
        "v": (width, key),
        "o": (query, width),
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
    }


@dataclass(frozen=True, slots=True)
class Training:
    """Apply the same gradients under several learning rates."""

    rng: np.random.Generator
    learning_rates: Sequence[float]
    correlation: float  # correlation of one weight's gradients in two successive steps

    def masters(self, shape: tuple[int, int], steps: int) -> Iterator[list[Array]]:
        """Yield the f32 masters [shape], one for each learning rate, before the first and after every step.

        The arrays change in place when the next ones are requested.
        """
        scale = np.float32(0.02 * math.exp(self.rng.normal(0.0, 0.3)))
        start = self._normal(shape) * scale
        weights = [start.copy() for _ in self.learning_rates]
        gradient = self._normal(shape)
        # The joint stationary distribution of a gradient and its running mean.
        carried = self.correlation * _BETA1
        covariance = (1 - _BETA1) / (1 - carried)
        variance = (1 - _BETA1) / (1 + _BETA1) * (1 + carried) / (1 - carried)
        mean = covariance * gradient + math.sqrt(variance - covariance**2) * self._normal(shape)
        square = np.ones(shape, np.float32)
        yield weights
        for _ in range(steps):
            gradient *= np.float32(self.correlation)
            gradient += np.float32(math.sqrt(1 - self.correlation**2)) * self._normal(shape)
            mean += np.float32(1 - _BETA1) * (gradient - mean)
            square += np.float32(1 - _BETA2) * (gradient * gradient - square)
            update = mean / np.sqrt(square)
            for weight, rate in zip(weights, self.learning_rates, strict=True):
                weight -= np.float32(rate) * update
            yield weights

    def _normal(self, shape: tuple[int, int]) -> Array:
        return self.rng.standard_normal(shape, np.float32)


def as_bf16(name: str, master: Array) -> Tensors:
    """Return the published bytes in bf16."""
    return [(name, "bfloat16", master.astype(ml_dtypes.bfloat16))]


def as_fp8(name: str, master: Array) -> Tensors:
    """Return E4M3 codes with one power-of-two scale (f32) for each block of 128 x 128."""
    rows, columns = master.shape
    blocks = master.reshape(rows // FP8_BLOCK, FP8_BLOCK, columns // FP8_BLOCK, FP8_BLOCK)
    largest = np.maximum(blocks.max(axis=(1, 3), keepdims=True), -blocks.min(axis=(1, 3), keepdims=True))
    scales = np.exp2(np.ceil(np.log2(largest / np.float32(_FP8_LARGEST)))).astype(np.float32)
    codes = (blocks / scales).reshape(master.shape).astype(ml_dtypes.float8_e4m3fn)
    return [(name, "float8_e4m3fn", codes), (f"{name}.scale", "float32", scales.reshape(rows // FP8_BLOCK, -1))]
