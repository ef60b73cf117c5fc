"""The train step and the sampler are lowered for the devices that they are meant for, without having one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from rollcast.policy.attention import Kernel
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import Forward, completion_logprobs
from rollcast.policy.params import abstract_params, abstract_snapshot
from rollcast.policy.vocabulary import Tiles

MODEL = ModelConfig(
    vocabulary_size=512,
    layers=1,
    width=128,
    query_heads=2,
    key_value_heads=1,
    head_size=128,
    feed_forward_width=128,
    precision="bfloat16",
)
ROWS, TIME = 2, 256


def gradient(kernel: Kernel) -> Any:
    """Gradients of log-probabilities, blocks computed again, a tile of the logits at a time."""
    forward = Forward(remat=True, tiles=Tiles(elements=ROWS * TIME * 128), kernel=kernel)

    def total(params: dict[str, jax.Array], *arrays: jax.Array) -> jax.Array:
        found = completion_logprobs(MODEL, params, *arrays, forward)
        return jnp.sum(found.logprobs) + jnp.sum(found.entropies)

    return jax.jit(jax.grad(total))


def arrays() -> list[jax.ShapeDtypeStruct]:
    whole = jax.ShapeDtypeStruct((ROWS, TIME), jnp.int32)
    return [whole, whole, whole, jax.ShapeDtypeStruct((ROWS, TIME), jnp.float32)]


@pytest.mark.parametrize(
    ("platform", "kernel", "call"),
    [("tpu", "splash", "tpu_custom_call"), ("cuda", "blocks", ""), ("cpu", "dense", "")],
)
def test_the_gradient_is_lowered(platform: str, kernel: Kernel, call: str) -> None:
    lowered = export.export(gradient(kernel), platforms=[platform])(abstract_params(MODEL), *arrays())
    assert lowered.platforms == (platform,)
    assert call in lowered.mlir_module()
    assert len(lowered.out_avals) == len(abstract_params(MODEL))
