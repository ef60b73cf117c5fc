"""Test that train step and sampler are lowered for the devices that they are meant for, without such a device."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from learner.config import LearnerConfig
from learner.training.trainer import Trainer
from rollcast.policy.attention import Kernel
from rollcast.policy.config import ModelConfig
from rollcast.policy.logits import Tiles
from rollcast.policy.params import abstract_snapshot
from rollcast.policy.sampling.decoding import STOP_TOKENS_MAX, Controls
from rollcast.policy.sampling.sampler import Sampler

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


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    """Return a trainer that recomputes blocks and computes the logits a tile at a time."""
    made = Trainer(MODEL, LearnerConfig(remat="blocks"))
    made._forward = dataclasses.replace(made._forward, tiles=Tiles(elements=ROWS * TIME * 128))
    return made


def part() -> Any:
    """Return the shapes of a micro-batch: the forward pass's inputs, the factors, and shares."""
    from learner.training.trainer import _Factors

    def rows(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((ROWS, TIME), dtype)

    read = {name: rows(jnp.int32) for name in ("tokens", "positions", "segments")} | {"temperature": rows(jnp.float32)}
    reals = [rows(jnp.float32) for _ in range(3)]
    return read, _Factors(rows(jnp.bool_), *reals, None, None), rows(jnp.float32)


@pytest.mark.parametrize(("platform", "kernel"), [("tpu", "splash"), ("cuda", "blocks"), ("cpu", "dense")])
def test_the_train_step_is_lowered(trainer: Trainer, platform: str, kernel: Kernel) -> None:
    trainer._forward = dataclasses.replace(trainer._forward, kernel=kernel)
    trainer._gradients._add.clear_cache()
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), trainer.params())
    lowered = export.export(trainer._gradients._add, platforms=[platform])(shapes, shapes, part(), 1)
    assert lowered.platforms == (platform,)
    assert ("tpu_custom_call" in lowered.mlir_module()) == (kernel == "splash")


def test_the_optimiser_is_lowered(trainer: Trainer) -> None:
    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)

    params, state = shapes(trainer.params()), shapes(trainer._optimiser_state)
    lowered = export.export(jax.jit(trainer._updates.apply), platforms=PLATFORMS)(params, state, params)
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
        jax.ShapeDtypeStruct((), np.float32),
    )
    snapshot = abstract_snapshot(MODEL)
    decode = export.export(sampler.decode, platforms=PLATFORMS)(snapshot, pages, controls, one, one)
    extend = export.export(sampler.extend, platforms=PLATFORMS)(
        snapshot, pages, tables, rows(jnp.int32, 16), number, number
    )
    assert decode.platforms == extend.platforms == PLATFORMS
