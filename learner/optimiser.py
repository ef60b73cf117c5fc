"""Adam with gradient clipping, its moments in 32, 16 or 8 bits, on the devices or in the host's memory."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from learner.config import OptimiserConfig
from learner.mesh import params_shardings, sharding_of, state_shardings
from learner.moments import Coded, chance, decode_first, decode_second, encode_first, encode_second, to_bfloat16
from rollcast.policy.params import Params

_EPSILON = 1e-8


class Moments(NamedTuple):
    """State of Adam: steps taken (i32), and by tensor name both moments in the form of the state's dtype."""

    count: jax.Array
    first: dict[str, Any]
    second: dict[str, Any]


class Updates(Protocol):
    """An optimiser: where its state is, and what it does to parameters."""

    def init(self, params: Params) -> Any:
        """A fresh state."""

    def apply(self, gradients: Params, state: Any, params: Params) -> tuple[Params, Any, jax.Array]:
        """Parameters and state after a step, and the gradients' norm before clipping. Donates state and parameters."""


def updates(config: OptimiserConfig, learning_rate: float, mesh: Mesh) -> Updates:
    """Gradients clipped to the global norm, then Adam (Kingma and Ba 2015)."""
    if config.offload:
        return _OnHost(config, learning_rate, mesh)
    return _OnDevices(config, learning_rate, mesh)


class _OnDevices:
    """All tensors at once."""

    def __init__(self, config: OptimiserConfig, learning_rate: float, mesh: Mesh) -> None:
        self._adam = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), _adam(config, learning_rate))
        self._mesh = mesh
        self._init = jax.jit(lambda params: self._laid_out(self._adam.init(params)))
        self._step = jax.jit(self._apply, donate_argnums=(1, 2))

    def init(self, params: Params) -> Any:
        return self._init(params)

    def apply(self, gradients: Params, state: Any, params: Params) -> tuple[Params, Any, jax.Array]:
        stepped: tuple[Params, Any, jax.Array] = self._step(gradients, state, params)
        return stepped

    def _apply(self, gradients: Params, state: Any, params: Params) -> tuple[Params, Any, jax.Array]:
        changes, state = self._adam.update(gradients, state, params)
        stepped = jax.lax.with_sharding_constraint(
            optax.apply_updates(params, changes), params_shardings(self._mesh, params)
        )
        return stepped, self._laid_out(state), optax.tree.norm(gradients)

    def _laid_out(self, state: Any) -> Any:
        return jax.lax.with_sharding_constraint(state, state_shardings(self._mesh, state))


class _OnHost:
    """One tensor after the other, so that the devices hold the moments of two tensors at a time."""

    def __init__(self, config: OptimiserConfig, learning_rate: float, mesh: Mesh) -> None:
        self._adam = _adam(config, learning_rate)
        self._max_norm = config.max_grad_norm
        self._mesh = mesh
        self._init = jax.jit(self._adam.init)
        self._share = jax.jit(self._clipped_share)
        self._step = jax.jit(self._apply, donate_argnums=(1, 2), static_argnums=4)

    def init(self, params: Params) -> dict[str, Any]:
        return {name: self._to_host(self._init({name: leaf})) for name, leaf in params.items()}

    def apply(self, gradients: Params, state: dict[str, Any], params: Params) -> tuple[Params, Any, jax.Array]:
        share, norm = self._share(gradients)
        stepped, kept = {}, {}
        before: Any = None
        for name in params:
            here = jax.device_put(state[name], state_shardings(self._mesh, state[name]))
            stepped[name], moments = self._step(gradients[name], here, params[name], share, name)
            kept[name] = self._to_host(moments)
            jax.block_until_ready(before)
            before = kept[name]
        return stepped, kept, norm

    def _clipped_share(self, gradients: Params) -> tuple[jax.Array, jax.Array]:
        norm = optax.tree.norm(gradients)
        return jnp.minimum(1.0, self._max_norm / norm), norm

    def _apply(
        self, gradient: jax.Array, state: Any, param: jax.Array, share: jax.Array, name: str
    ) -> tuple[jax.Array, Any]:
        changes, state = self._adam.update({name: gradient * share}, state)
        where = sharding_of(self._mesh, name, param.shape)
        return jax.lax.with_sharding_constraint(param + changes[name], where), state

    def _to_host(self, state: Any) -> Any:
        where = jax.tree.map(lambda one: one.with_memory_kind("pinned_host"), state_shardings(self._mesh, state))
        return jax.device_put(state, where)


def _adam(config: OptimiserConfig, learning_rate: float) -> Any:
    if config.state_dtype == "float32":
        scaled = optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=_EPSILON)
    else:
        scaled = scale_by_small_adam(config.b1, config.b2, config.state_dtype)
    return optax.chain(scaled, optax.scale_by_learning_rate(learning_rate))


def scale_by_small_adam(b1: float, b2: float, state_dtype: str) -> Any:
    """Like optax.scale_by_adam, with moments of matrices in bfloat16 or int8; vectors are few and stay float32."""

    def init(params: Params) -> Moments:
        first = {name: _encode(jnp.zeros(leaf.shape, jnp.float32), name, state_dtype) for name, leaf in params.items()}
        second = {
            name: _encode(jnp.zeros(leaf.shape, jnp.float32), name, state_dtype, second=True)
            for name, leaf in params.items()
        }
        return Moments(jnp.zeros((), jnp.int32), first, second)

    def update(gradients: Params, state: Moments, params: Params | None = None) -> tuple[Params, Moments]:
        del params
        count = state.count + 1
        steps = count.astype(jnp.float32)
        updates, first, second = {}, {}, {}
        for name, gradient in gradients.items():
            mean = b1 * _decode(state.first[name]) + (1.0 - b1) * gradient
            square = b2 * _decode(state.second[name], second=True) + (1.0 - b2) * jnp.square(gradient)
            root = jnp.sqrt(square / (1.0 - b2**steps))
            updates[name] = mean / (1.0 - b1**steps) / (root + _EPSILON)
            first[name] = _encode(mean, name, state_dtype, count)
            second[name] = _encode(square, name, state_dtype, count, second=True)
        return updates, Moments(count, first, second)

    return optax.GradientTransformation(init, update)


def _encode(values: jax.Array, name: str, dtype: str, count: Any = 0, *, second: bool = False) -> Any:
    if values.ndim < 2:
        return values
    seed = jnp.asarray(count).astype(jnp.uint32) * jnp.uint32(0x9E3779B1) ^ jnp.uint32(
        zlib.crc32(f"{name}/{'second' if second else 'first'}".encode())
    )
    chances = chance(values.shape, seed)
    if dtype == "bfloat16":
        return to_bfloat16(values, chances)
    return encode_second(values, chances) if second else encode_first(values, chances)


def _decode(moment: Any, *, second: bool = False) -> jax.Array:
    if isinstance(moment, Coded):
        return decode_second(moment) if second else decode_first(moment)
    return moment.astype(jnp.float32)
