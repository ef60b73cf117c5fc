"""Test that train step and sampler are lowered for the devices that they are meant for, without such a device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from learner.config import LearnerConfig, MeshConfig
from learner.training.mesh import make_mesh
from learner.training.programs import Factors, Programs
from rollcast.policy.attention import Kernel
from rollcast.policy.config import ModelConfig
from rollcast.policy.logits import Tiles
from rollcast.policy.logprobs import Forward
from rollcast.policy.params import abstract_params, abstract_snapshot
from rollcast.policy.sampling.decoding import Controls
from rollcast.policy.sampling.sampler import Sampler
from rollcast.wire.limits import STOP_TOKENS_MAX

PLATFORMS = ("tpu", "cuda", "cpu")
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


def programs(kernel: Kernel | None = None) -> Programs:
    """Return programs that recompute blocks and compute the logits a tile at a time."""
    forward = Forward(remat=True, tiles=Tiles(elements=ROWS * TIME * 128), kernel=kernel)
    return Programs(MODEL, LearnerConfig(), make_mesh(MeshConfig()), forward)


def part() -> Any:
    """Return the shapes of a micro-batch: the forward pass's inputs, the factors, and shares."""

    def rows(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((ROWS, TIME), dtype)

    read = {name: rows(jnp.int32) for name in ("tokens", "positions", "segments")} | {"temperature": rows(jnp.float32)}
    read["seeds"] = jax.ShapeDtypeStruct((ROWS, TIME, 2), jnp.uint32)
    reals = [rows(jnp.float32) for _ in range(3)]
    return read, Factors(rows(jnp.bool_), *reals, rows(jnp.bool_), reals[0], None, None), rows(jnp.float32)


@pytest.mark.parametrize(("platform", "kernel"), [("tpu", "splash"), ("cuda", "blocks"), ("cpu", "dense")])
def test_the_train_step_is_lowered(platform: str, kernel: Kernel) -> None:
    params = abstract_params(MODEL)
    lowered = export.export(programs(kernel).gradients.add, platforms=[platform])(params, params, part(), 1)
    assert lowered.platforms == (platform,)
    assert ("tpu_custom_call" in lowered.mlir_module()) == (kernel == "splash")


def test_the_optimiser_is_lowered() -> None:
    params, updates = abstract_params(MODEL), programs().updates
    state = jax.eval_shape(updates.init, params)
    lowered = export.export(jax.jit(updates.apply), platforms=PLATFORMS)(
        params, state, params, jax.ShapeDtypeStruct((), jnp.bool_)
    )
    assert lowered.platforms == PLATFORMS


def test_the_sampler_is_lowered() -> None:
    sampler = Sampler(MODEL, prompt_tokens_max=16, new_tokens_max=16, batch_size=ROWS)
    pages = jax.eval_shape(sampler.new_pages)

    def rows(dtype: Any, *more: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((ROWS, *more), dtype)

    number, one = rows(jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
    tables = rows(jnp.int32, sampler.table_pages)
    controls = Controls(
        tables,
        number,
        number,
        number,
        rows(jnp.uint32, 2),
        rows(jnp.int32, STOP_TOKENS_MAX),
        rows(jnp.float32),
        number,
        jax.ShapeDtypeStruct((), np.float32),
    )
    snapshot = abstract_snapshot(MODEL)
    decode = export.export(sampler.decode, platforms=PLATFORMS)(snapshot, pages, controls, one, one)
    extend = export.export(sampler.extend, platforms=PLATFORMS)(
        snapshot, pages, tables, rows(jnp.int32, 16), number, number, number
    )
    assert decode.platforms == extend.platforms == PLATFORMS
