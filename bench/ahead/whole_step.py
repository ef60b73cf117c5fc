"""Lower every program of a learner's step for devices that need not exist, from shapes and shardings alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from bench.ahead.accelerators import Accelerators
from learner.config import LearnerConfig
from learner.training.mesh import make_mesh, rows_sharding
from learner.training.micro_batches import forward_of
from learner.training.programs import Factors, Programs
from rollcast.policy.attention import Device, kernel_for
from rollcast.policy.config import ModelConfig, OptimiserName
from rollcast.policy.mesh import params_shardings
from rollcast.policy.params import abstract_params, abstract_snapshot
from rollcast.policy.snapshot import frozen_bits
from rollcast.policy.stacking import stacked

SEQUENCES_PER_ROW = 8
"""Rollouts that share a row of a packed batch."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the step."""

    phase: str
    lowered: jax.stages.Lowered
    alive_bytes: int
    """Bytes on each device of all arrays in memory when the program starts, those of its arguments included."""


def learner_config(accelerators: Accelerators, row_tokens: int, optimiser: OptimiserName = "adamw") -> LearnerConfig:
    """Return the configuration of configs/qwen3-4b-math.toml on more devices, each with one row of a micro-batch."""
    micro_batch_tokens = row_tokens * accelerators.count
    return LearnerConfig.model_validate(
        {
            "remat": "blocks",
            "packed_row_tokens": row_tokens,
            "mesh": {"data": accelerators.data, "fsdp": accelerators.fsdp},
            "objective": {"algorithm": "dapo"},
            "optimiser": {
                "name": optimiser,
                "micro_batch_tokens": micro_batch_tokens,
                "state_dtype": "bfloat16",
            },
        }
    )


def step_programs(
    model: ModelConfig,
    accelerators: Accelerators,
    devices: list[Any],
    row_tokens: int,
    optimiser: OptimiserName = "adamw",
) -> Iterator[Program]:
    """Yield the programs of a whole step: behaviour under an older version, gradients, optimiser and publishing.

    The copy of a published version stays in memory until it is written, which may take as long as the next step.

    Args:
        devices: the accelerators' devices; see accelerators.devices_of.
        row_tokens: tokens of a row; each device has one row of a micro-batch.
    """
    config = learner_config(accelerators, row_tokens, optimiser)
    mesh = make_mesh(config.mesh, devices)
    device = Device(accelerators.platform, accelerators.compute_capability)
    kernel = kernel_for(device, row_tokens, model.head_size, model.carrier_dtype, packed=True).kernel
    programs = Programs(model, config, mesh, replace(forward_of(config, mesh), kernel=kernel))
    published = (abstract_params(model), abstract_snapshot(model))
    masters, older = (_placed(mesh, jax.eval_shape(stacked, tensors)) for tensors in published)
    state = programs.updates.abstract_state(masters)
    read, part = _micro_batch(mesh, row_tokens)
    resident = bytes_per_device((masters, state, older))  # with the copy of a version of the same shapes
    behaviour = programs.statistics.one_pass.lower(older, read)
    yield Program("behaviour", behaviour, resident + bytes_per_device((older, read)))
    gradients = programs.gradients.add.lower(masters, masters, part, SEQUENCES_PER_ROW)
    yield Program("gradients", gradients, resident + bytes_per_device((masters, part)))
    for lowered in programs.updates.lowered(masters):
        yield Program("optimiser step", lowered, resident + bytes_per_device(masters))
    for name, leaf in _one_of_each_kind(_placed(mesh, abstract_params(model))):
        frozen = jax.jit(functools.partial(frozen_bits, model, name)).lower(leaf)
        yield Program("publishing", frozen, resident)


def _one_of_each_kind(tensors: dict[str, jax.ShapeDtypeStruct]) -> list[tuple[str, jax.ShapeDtypeStruct]]:
    """Return one tensor of each shape and sharding, by name."""
    kinds = {(leaf.shape, leaf.sharding): (name, leaf) for name, leaf in tensors.items()}
    return list(kinds.values())


def bytes_per_device(tree: Any) -> int:
    """Return the bytes that a tree of placed shapes takes on each device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _placed(mesh: Mesh, tensors: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.ShapeDtypeStruct]:
    where = params_shardings(mesh, tensors)
    return {name: _at(leaf.shape, leaf.dtype, where[name]) for name, leaf in tensors.items()}


def _at(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _micro_batch(mesh: Mesh, row_tokens: int) -> tuple[dict[str, Any], Any]:
    """Return the inputs of a forward pass, and a whole micro-batch as learner.training.programs describes it."""

    def rows(dtype: Any) -> jax.ShapeDtypeStruct:
        return _at((mesh.size, row_tokens), dtype, rows_sharding(mesh))

    read = {name: rows(jnp.int32) for name in ("tokens", "positions", "segments")}
    read["temperature"] = rows(jnp.float32)
    read["seeds"] = _at((mesh.size, row_tokens, 2), jnp.uint32, rows_sharding(mesh))
    flags, reals = rows(jnp.bool_), rows(jnp.float32)
    factors = Factors(
        loss_mask=flags,
        advantages=reals,
        weights=reals,
        behaviour_logprobs=reals,
        on_policy=flags,
        margins_max=reals,
        proximal_logprobs=None,
        reference_logprobs=None,
    )
    return read, (read, factors, reals)
