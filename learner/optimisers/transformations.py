"""Choose the optax transformation of each tensor, and the learning rate of each step.

AdamW (Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 2) is for every tensor. With Muon
(Jordan et al. 2024) the kernels of the layers get orthogonalised updates instead, and all other tensors keep AdamW.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from learner.config import OptimiserConfig
from learner.optimisers.moments import Transformation, stored
from rollcast.policy.lora import is_adapter
from rollcast.policy.shapes import is_hidden_kernel

MUON_RMS = 0.2
"""Root mean square of Muon's update at learning rate 1. AdamW's updates have about that size too, so the same learning
rate and weight decay suit both (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2)."""

Schedule = Callable[[jax.Array], jax.Array]  # number of steps taken (i32) -> learning rate (f32) of the next one
ByName = Callable[[str], Transformation]


def schedule_of(config: OptimiserConfig, peak: float, steps_per_batch: int = 1) -> Schedule:
    """Return the learning rate by optimiser steps taken.

    Args:
        peak: the learning rate after the warm-up.
        steps_per_batch: optimiser steps of a learner step; all of them have the same learning rate.
    """
    warmup, falling = config.warmup_steps, config.decay_steps - config.warmup_steps
    match config.schedule:
        case "constant":
            after = optax.constant_schedule(peak)
        case "linear":
            after = optax.linear_schedule(peak, config.end_share * peak, falling)
        case "cosine":
            after = optax.cosine_decay_schedule(peak, falling, config.end_share)
    if warmup:  # from one share of the peak, not from 0: a batch is too expensive for a step that changes nothing
        rising = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
        after = optax.join_schedules([rising, after], [warmup])
    return lambda count: jnp.asarray(after(count // steps_per_batch), jnp.float32)


def transformations_of(config: OptimiserConfig, learning_rate: float | Schedule) -> ByName:
    """Return the transformation of a tensor by its name; equal tensors share one, so that it is compiled once.

    Weight decay applies to kernels and adapters only: norms, biases and embeddings are not decayed. Muon is for both.
    """
    adamw = stored(_adamw(config, learning_rate, 0.0), config.state_dtype)
    decaying = stored(_adamw(config, learning_rate, config.weight_decay), config.state_dtype)
    muon = stored(_muon(config, learning_rate), config.state_dtype)

    def chosen(name: str) -> Transformation:
        if config.name == "muon" and (is_hidden_kernel(name) or is_adapter(name)):
            return muon
        return decaying if name.endswith(".kernel") or is_adapter(name) else adamw

    return chosen


def _adamw(
    config: OptimiserConfig, learning_rate: float | Schedule, weight_decay: float
) -> optax.GradientTransformation:
    return optax.adamw(learning_rate, b1=config.b1, b2=config.b2, eps=config.epsilon, weight_decay=weight_decay)


def _muon(config: OptimiserConfig, learning_rate: float | Schedule) -> optax.GradientTransformation:
    return optax.contrib.muon(
        learning_rate,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        # Kernels are [inputs, outputs], perhaps with an axis of experts in front, each of which is a matrix of its own.
        muon_weight_dimension_numbers=optax.contrib.MuonDimensionNumbers(-2, -1),
        consistent_rms=MUON_RMS,
    )
