"""The Gumbel noise of rollcast.policy.noise in torch, on the device of the logits."""

from __future__ import annotations

import torch

from rollcast.policy.noise import PARITY, ROTATIONS, seed_words

_BITS = 32
# Words per pass: the cipher reads them about a hundred times, so they should fit into a processor cache.
_WORDS_AT_ONCE = 1 << 18


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocabulary_size: int) -> torch.Tensor:
    """Return noise f32 [rows, vocabulary] for seeds i32 [rows, 2] (see seed_bits) and positions i32 [rows]."""
    on_cpu = seeds.device.type == "cpu"
    rows_at_once = max(1, _WORDS_AT_ONCE // vocabulary_size) if on_cpu else max(1, len(seeds))
    tokens = torch.arange(vocabulary_size, dtype=torch.int32, device=seeds.device)[None, :]
    parts = []
    for start in range(0, len(seeds), rows_at_once):
        rows = slice(start, start + rows_at_once)
        bits = _threefry(seeds[rows, :1], seeds[rows, 1:], positions[rows, None], tokens)
        uniforms = (_shifted_right(bits, 9).float() + 0.5) * 2.0**-23
        parts.append(-torch.log(-torch.log(uniforms)))
    return torch.cat(parts)


def seed_bits(seeds: list[int], device: torch.device) -> torch.Tensor:
    """Return the high and low words of 64-bit seeds as i32 [rows, 2] with the same bits."""
    signed = [[_signed(word) for word in seed_words(seed)] for seed in seeds]
    return torch.tensor(signed, dtype=torch.int32, device=device)


def _signed(word: int) -> int:
    return word - (1 << _BITS) if word >> (_BITS - 1) else word


def _threefry(key0: torch.Tensor, key1: torch.Tensor, counter0: torch.Tensor, counter1: torch.Tensor) -> torch.Tensor:
    """Return the first word of rollcast.policy.noise.threefry2x32, computed in signed words that wrap around."""
    keys = (key0, key1, key0 ^ key1 ^ PARITY)
    x0, x1 = counter0 + keys[0], counter1 + keys[1]
    for injection in range(1, 6):
        for rotation in ROTATIONS[(injection - 1) % 2]:
            x0 = x0 + x1
            x1 = (x1 << rotation) | _shifted_right(x1, _BITS - rotation)
            x1 = x1 ^ x0
        x0 = x0 + keys[injection % 3]
        x1 = x1 + keys[(injection + 1) % 3] + injection
    return x0


def _shifted_right(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right as if the words were unsigned."""
    return (words >> bits) & ((1 << (_BITS - bits)) - 1)
