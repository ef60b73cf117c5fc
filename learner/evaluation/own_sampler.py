"""Size the sampler with which the learner itself completes held-out problems, by the memory that is left for it.

Keys and values are what grows with the number of completions: 1.1 GiB for one completion of Qwen3-4B at 1,024 + 7,168
tokens. So the number of completions that are sampled at once follows from the bytes that they may take.
"""

from __future__ import annotations

import jax
import structlog

from rollcast.policy.config import ModelConfig
from rollcast.policy.sampling.kv_cache import page_bytes
from rollcast.policy.sampling.sampler import PAGE_TOKENS, Sampler

EVALUATION_BATCH = 128  # completions sampled at a time at most: more make a slice slower and a stop later
_SHARE_OF_FREE = 0.5  # of the free device memory; weights as they are gathered and logits take the rest
_UNREPORTED_BYTES = 4 << 30  # for keys and values where a device does not report its memory, as a CPU's does not

_log = structlog.get_logger()


def cache_bytes_left() -> int:
    """Return the bytes that keys and values may take on the device of this process that has least memory left."""
    reports = [device.memory_stats() for device in jax.local_devices()]
    free = [one["bytes_limit"] - one["bytes_in_use"] for one in reports if one and "bytes_limit" in one]
    return int(min(free) * _SHARE_OF_FREE) if free else _UNREPORTED_BYTES


def own_sampler(
    model: ModelConfig, prompt_tokens_max: int, new_tokens_max: int, completions_most: int, cache_bytes: int
) -> Sampler:
    """Return a sampler whose keys and values take ``cache_bytes`` at most, with one row at least.

    Args:
        completions_most: the most completions that are asked for at once; no more rows are made.
        cache_bytes: bytes of device memory; see ``cache_bytes_left``.
    """
    pages_of_row = -(-(prompt_tokens_max + new_tokens_max) // PAGE_TOKENS) + 1  # a prompt's last page is copied
    pages = cache_bytes // page_bytes(model, PAGE_TOKENS) - 1  # the page that belongs to no sequence
    rows = max(1, min(EVALUATION_BATCH, completions_most, pages // pages_of_row))
    size = (rows * pages_of_row + 1) * page_bytes(model, PAGE_TOKENS)
    if size > cache_bytes:
        _log.warning("one completion takes more than the memory left", bytes=size, left=cache_bytes)
    return Sampler(model, prompt_tokens_max, new_tokens_max, rows)
