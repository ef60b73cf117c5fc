"""Define what learner and coordinator must agree on about evaluations, whoever of the two has them generated."""

from __future__ import annotations

import hashlib

KEPT_PROBLEMS = 16
"""Problems of a set whose completions are kept for people to read."""


def evaluation_seed(seed: int, number: int, sample_index: int) -> int:
    """Return the 64-bit noise seed of one evaluation sample; its prefix separates it from training's slot seeds.

    ``number`` is that of the problem, usually its index in its set.
    """
    text = f"rollcast/evaluation/{seed}/{number}/{sample_index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
