"""Stack the tensors of a model's layers: layers.0.x, layers.1.x and so on become one tensor layers.x [layers, ...].

A program over stacked tensors contains one block, which a loop applies to each layer in turn (`jax.lax.scan`), however
many layers there are: compilers need minutes for tens of copies of a block. Files, versions and checkpoints of the
interchange formats name each layer's tensors; `Layers` shows stacked tensors by those names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

_PREFIX = "layers."
_OF_ONE_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


def is_stacked(name: str) -> bool:
    """Return whether a tensor of this name is stacked, with the layers as its first axis."""
    return name.startswith(_PREFIX) and _OF_ONE_LAYER.fullmatch(name) is None


def stack_of(name: str) -> str:
    """Return the name of the stack that a tensor becomes part of; its own if it belongs to no layer."""
    found = _OF_ONE_LAYER.fullmatch(name)
    return name if found is None else _PREFIX + found[2]


def stacked(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters, or a snapshot's tensors, in stacked form, sorted by name. Those stacked stay as they are.

    Raises:
        KeyError: a layer lacks a tensor that another one has.
    """
    result: dict[str, Any] = {}
    of_layers: dict[str, dict[int, Any]] = {}
    for name, value in params.items():
        if found := _OF_ONE_LAYER.fullmatch(name):
            of_layers.setdefault(_PREFIX + found[2], {})[int(found[1])] = value
        else:
            result[name] = value
    for name, own in of_layers.items():
        result[name] = jnp.stack([own[layer] for layer in range(len(own))])
    return dict(sorted(result.items()))


def changed_by_layer(change: Callable[[Any, Any, jax.Array], Any], kept: Any, read: Any) -> Any:
    """Change stacked arrays one layer after the other, in place where they are donated.

    The temporary memory is that of one layer.

    Args:
        change: (a layer of ``kept``, a layer of ``read``, its index i32) -> the new layer of ``kept``.
        kept: tree of arrays [layers, ...]; its last value is returned.
        read: tree of arrays [layers, ...].
    """

    def one(layer: jax.Array, whole: Any) -> Any:
        own, given = jax.tree.map(
            lambda stack: jax.lax.dynamic_index_in_dim(stack, layer, keepdims=False), (whole, read)
        )
        return jax.tree.map(
            lambda stack, new: jax.lax.dynamic_update_index_in_dim(stack, new, layer, 0),
            whole,
            change(own, given, layer),
        )

    return jax.lax.fori_loop(0, jax.tree.leaves(kept)[0].shape[0], one, kept)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a stacked tensor that is not copied yet: a compiled function cuts it where it reads it.

    Such a function is compiled once for all layers of a stack.
    """

    stack: jax.Array  # [layers, ...]
    index: jax.Array | int
    where: NamedSharding | None = field(metadata={"static": True})  # the layer's sharding; None: on one device

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.stack.dtype
        return found

    def cut(self) -> jax.Array:
        """Return the layer, divided among the devices like the stack."""
        one = jax.lax.dynamic_index_in_dim(self.stack, self.index, keepdims=False)
        return one if self.where is None else jax.lax.with_sharding_constraint(one, self.where)


def cut(value: jax.Array | Layer) -> jax.Array:
    """Return a tensor, or the layer that is not copied yet."""
    return value.cut() if isinstance(value, Layer) else value


class Layers(Mapping[str, Any]):
    """Stacked parameters by the names of single layers' tensors, sorted; a tensor is copied when it is read."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params
        self._places = dict(sorted(place for name, leaf in params.items() for place in _places(name, leaf.shape)))

    def __getitem__(self, name: str) -> Any:
        value = self.uncut(name)
        return _cut_now(value) if isinstance(value, Layer) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def uncut(self, name: str) -> Any:
        """Return a tensor for a compiled function that calls `cut`: the copy of a layer then costs no memory."""
        stack, layer = self._places[name]
        return self._params[stack] if layer is None else _layer(self._params[stack], layer)


def _places(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[str, int | None]]]:
    """Return the names under which a tensor is shown, each with the tensor's own name and the layer."""
    if not is_stacked(name):
        return [(name, (name, None))]
    rest = name.removeprefix(_PREFIX)
    return [(f"{_PREFIX}{layer}.{rest}", (name, layer)) for layer in range(shape[0])]


def _layer(stack: jax.Array, index: int) -> Layer:
    where = stack.sharding
    if not isinstance(where, NamedSharding):
        return Layer(stack, index, None)
    return Layer(stack, index, NamedSharding(where.mesh, PartitionSpec(*where.spec[1:])))


_cut_now = jax.jit(Layer.cut)
