"""Hold parameters as a flat dictionary by dotted tensor name, and bind the model to them.

Optimiser, sampler, snapshot and checkpoint all share this one form. Inside jit it is an ordinary pytree with its keys
in sorted order.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rollcast.policy.config import LoraConfig, ModelConfig
from rollcast.policy.lora import is_adapter
from rollcast.policy.model import Decoder
from rollcast.policy.products.grouped import GroupedLinear
from rollcast.policy.products.linear import Flow, Linear
from rollcast.policy.stacking import is_stacked

Params = dict[str, Any]

# A snapshot's kernel in codes is several tensors: "....kernel", "....kernel_scale", and in NVFP4 a third one.
SCALE_SUFFIX = ".kernel_scale"
TENSOR_SCALE_SUFFIX = ".kernel_tensor_scale"

# It is small against what the blocks add, so that computed features dominate the residual stream from the start: with
# embeddings of deviation 1 the demonstration model is about twice as slow to learn sums.
EMBEDDING_DEVIATION = 0.02


#: Takes a name and its f32 host array in C order and returns the parameter, for example an array on several devices.
Place = Callable[[str, np.ndarray[Any, np.dtype[np.float32]]], Any]


def initial_params(config: ModelConfig, seed: int, place: Place | None = None) -> Params:
    """Return fresh float32 parameters by tensor name; the same seed gives the same bits on every platform.

    The embedding is normal with EMBEDDING_DEVIATION, kernels [..., inputs, outputs] are normal with variance 1 /
    inputs, scales are 1 and biases 0. Tensors are made one at a time, in sorted order of their names.

    Args:
        config: the architecture.
        seed: seed of the random numbers.
        place: places each tensor; None: on the default device.

    Raises:
        ValueError: the vocabulary size is not set, or the heads do not divide.
    """
    random = np.random.Generator(np.random.Philox(seed))
    keep = place or (lambda _name, value: jnp.asarray(value))
    return {
        name: keep(name, _initial_value(name, leaf.shape, random))
        for name, leaf in sorted(abstract_params(config).items())
    }


def _initial_value(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray[Any, Any]:
    if name.endswith(".scale"):
        return np.ones(shape, np.float32)
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    deviation = EMBEDDING_DEVIATION if name == "embedding" else shape[-2] ** -0.5
    return random.standard_normal(shape, np.float32) * np.float32(deviation)


def bind(config: ModelConfig, params: Params) -> Decoder:
    """Return the model that computes with ``params``, masters or a thawed snapshot; it works inside jit too.

    Its layers are scanned if the parameters are stacked (rollcast.policy.stacking). They have the adapters of the
    configuration if ``params`` have: a base alone, which B = 0 would not change, computes without.

    Raises:
        KeyError: a tensor is missing.
    """
    frozen = any(name.endswith(SCALE_SUFFIX) for name in params)
    has_adapters = any(map(is_adapter, params))
    graph, leaves = _skeleton(
        config, frozen=frozen, scanned=any(map(is_stacked, params)), lora=config.lora if has_adapters else None
    )
    bound = [(path, leaf.replace(params[_name(path)])) for path, leaf in leaves]
    model: Decoder = nnx.merge(graph, nnx.from_flat_state(bound))
    return model


def abstract_params(config: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shape and (float32) dtype of every parameter by name except adapters', without allocating any.

    Raises:
        ValueError: see initial_params.
    """
    return {_name(path): leaf.get_value() for path, leaf in _skeleton(config, frozen=False)[1]}


def abstract_snapshot(config: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shape and dtype by name of every tensor that a rollout reads.

    With an fp8 precision or a base in NVFP4 kernels are codes and scales; all other tensors have the carrier's dtype.
    Adapters are not among them: they are a state of their own (rollcast.policy.lora).

    Raises:
        ValueError: see initial_params.
    """
    carrier = jnp.dtype(config.carrier_dtype)
    tensors = {_name(path): leaf.get_value() for path, leaf in _skeleton(config, frozen=True)[1]}

    def dtype_of(name: str, leaf: Any) -> Any:
        return carrier if leaf.dtype == jnp.float32 and not name.endswith(TENSOR_SCALE_SUFFIX) else leaf.dtype

    return {name: jax.ShapeDtypeStruct(leaf.shape, dtype_of(name, leaf)) for name, leaf in tensors.items()}


@functools.lru_cache(maxsize=16)
def _skeleton(
    config: ModelConfig, *, frozen: bool, scanned: bool = False, lora: LoraConfig | None = None
) -> tuple[Any, list[tuple[tuple[Any, ...], Any]]]:
    if config.vocabulary_size < 1:
        raise ValueError("vocabulary_size is not set: take it from the tokenizer")
    if config.query_heads % config.key_value_heads or config.head_size % 2:
        raise ValueError("query_heads must be a multiple of key_value_heads, and head_size even")
    graph, state = nnx.split(
        nnx.eval_shape(lambda: _decoder(config, frozen=frozen, scanned=scanned, lora=lora)), nnx.Param
    )
    return graph, list(nnx.to_flat_state(state))


def _decoder(config: ModelConfig, *, frozen: bool, scanned: bool, lora: LoraConfig | None) -> Decoder:
    """Build a decoder; its blocks' kernels follow the precision, embedding, norms and head keep the carrier's dtype."""
    model = Decoder(config, scanned=scanned)
    flow = _flow(config, frozen=frozen)
    for _, module in nnx.iter_modules(model.layers):
        if isinstance(module, Linear | GroupedLinear):
            module.set_flow(flow)
        if isinstance(module, Linear) and frozen and config.has_packed_base:
            module.set_flow("nvfp4-codes")
    if lora is not None:
        for block in [model.layers] if scanned else model.layers:
            for target in lora.targets:
                operator.attrgetter(target)(block).add_adapter(lora.rank, lora.scale)
    return model


def _flow(config: ModelConfig, *, frozen: bool) -> Flow:
    match config.precision:
        case "fp8":
            return "fp8-codes" if frozen else "fp8-master"
        case "fp8-naive":
            return "fp8-codes" if frozen else "carrier"
        case _:
            return "carrier"


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)
