from __future__ import annotations

import jax
import pytest

from learner.evaluation.own_sampler import EVALUATION_BATCH, cache_bytes_left, own_sampler
from rollcast.policy.config import ModelConfig

FOUR_B = ModelConfig(preset="qwen3-4b")
GIB = 1 << 30


@pytest.mark.parametrize("cache_gib", [2, 16, 40])
def test_keys_and_values_of_a_large_model_take_no_more_than_the_memory_left(cache_gib: int) -> None:
    sampler = own_sampler(FOUR_B, 1024, 7168, completions_most=512, cache_bytes=cache_gib * GIB)
    pages = jax.eval_shape(sampler.new_pages)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pages))
    assert size <= cache_gib * GIB
    assert size > (cache_gib - 1.2) * GIB  # and no row less than fits


def test_small_models_are_sampled_in_whole_batches() -> None:
    small = ModelConfig(vocabulary_size=16)
    assert own_sampler(small, 64, 16, completions_most=512, cache_bytes=4 * GIB).batch_size == EVALUATION_BATCH
    assert own_sampler(small, 64, 16, completions_most=3, cache_bytes=4 * GIB).batch_size == 3


def test_one_completion_is_sampled_however_little_memory_is_left() -> None:
    assert own_sampler(FOUR_B, 1024, 7168, completions_most=512, cache_bytes=0).batch_size == 1


def test_the_memory_left_is_that_of_the_fullest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        def __init__(self, in_use: int) -> None:
            self._in_use = in_use

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 80 * GIB, "bytes_in_use": self._in_use * GIB}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device(20), Device(60)])
    assert cache_bytes_left() == 10 * GIB
