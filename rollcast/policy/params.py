"""Parameters as a flat dictionary of dotted tensor names, and the model bound to them.

This is the one form that optimiser, sampler, snapshot and checkpoint share. Inside jit it is an ordinary pytree with
its keys in sorted order.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from flax import nnx

from rollcast.policy.config import ModelConfig
from rollcast.policy.model import Decoder, build_model

Params = dict[str, Any]


def initial_params(config: ModelConfig, seed: int) -> Params:
    """Fresh float32 parameters, by tensor name (ValueError: see build_model)."""
    return params_of(build_model(config, seed))


def params_of(model: Decoder) -> Params:
    """The model's parameters by dotted name, for example ``layers.0.attention.query.kernel``."""
    return {_name(path): variable[...] for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))}


def bind(config: ModelConfig, params: Params) -> Decoder:
    """The model that computes with ``params``: to be called inside jit.

    Raises:
        KeyError: a tensor is missing.
    """
    graph, leaves = _skeleton(config)
    bound = [(path, leaf.replace(params[_name(path)])) for path, leaf in leaves]
    model: Decoder = nnx.merge(graph, nnx.from_flat_state(bound))
    return model


def abstract_params(config: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Name to shape and (float32) dtype of every parameter, without computing any."""
    return {_name(path): leaf.get_value() for path, leaf in _skeleton(config)[1]}


@functools.lru_cache(maxsize=16)
def _skeleton(config: ModelConfig) -> tuple[Any, list[tuple[tuple[Any, ...], Any]]]:
    graph, state = nnx.split(nnx.eval_shape(lambda: build_model(config, 0)), nnx.Param)
    return graph, list(nnx.to_flat_state(state))


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)
