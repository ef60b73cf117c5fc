"""Compute Gumbel noise as a pure function of (slot seed, position, token id), the same for every engine.

It is defined, for a 64-bit seed, a position p (index of the sampled token in prompt + completion, padding not counted)
and a token id v, by:

    (x0, x1) = threefry2x32-20(key = (seed >> 32, seed & 0xffffffff), counter = (p, v))    Salmon et al. 2011, Random123
    u = ((x0 >> 9) + 0.5) * 2**-23      exact in float32, and strictly between 0 and 1
    g = -log(-log(u))                   float32

The sampled token is the argmax over v of logits[v] / temperature + g[v], which is a sample of
softmax(logits / temperature) (Gumbel-max). With 24 bits instead of 23, adding 0.5 would round the largest u to 1 and
its noise to infinity.

The module needs only NumPy, because engines without jax use it too; for jax, rollcast.policy.logits.gumbel
computes the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Rotations and key parity of Threefry-2x32 (Random123, threefry.h).
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
_SEED_BITS = 64


def seed_words(seed: int) -> tuple[int, int]:
    """Return the high and the low 32 bits of a slot seed.

    Raises:
        ValueError: the seed is not an unsigned 64-bit integer.
    """
    if not 0 <= seed < 1 << _SEED_BITS:
        raise ValueError(f"seed {seed} is not an unsigned 64-bit integer")
    return seed >> 32, seed & 0xFFFFFFFF


def threefry2x32(key0: Any, key1: Any, counter0: Any, counter1: Any) -> tuple[Any, Any]:
    """Compute Threefry-2x32 with 20 rounds on uint32 arrays, NumPy's or jax's, that broadcast against each other."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(PARITY))
    x0, x1 = counter0 + keys[0], counter1 + keys[1]
    for injection in range(1, 6):
        for rotation in ROTATIONS[(injection - 1) % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
            x1 = x1 ^ x0
        x0 = x0 + keys[injection % 3]
        x1 = x1 + keys[(injection + 1) % 3] + np.uint32(injection)
    return x0, x1


def uniforms(bits: Any) -> Any:
    """Convert uint32 bits to float32 strictly between 0 and 1, without rounding."""
    return ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)


def gumbel_numpy(seed: int, position: int, vocabulary_size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the noise f32 [vocabulary] for one sampled token: the reference for every engine."""
    high, low = (np.full(1, word, np.uint32) for word in seed_words(seed))
    bits, _ = threefry2x32(high, low, np.full(1, position, np.uint32), np.arange(vocabulary_size, dtype=np.uint32))
    noise: np.ndarray[Any, np.dtype[np.float32]] = -np.log(-np.log(uniforms(bits)))
    return noise
