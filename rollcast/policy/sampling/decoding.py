"""Run the decode loop: sample a slice of tokens for every row from the logits with the noise of its seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rollcast.policy.logits import gumbel
from rollcast.policy.model import Decoder
from rollcast.policy.sampling.kv_cache import Pages, extend
from rollcast.wire.limits import STOP_TOKENS_MAX

_NO_TOKEN = -1


class Controls(NamedTuple):
    """The inputs of the decode loop for each row; one compiled form serves all values."""

    tables: Any  # i32 [rows, pages of a sequence]
    starts: Any  # i32 [rows], number of tokens in the pages
    last: Any  # i32 [rows], the token that follows them
    budgets: Any  # i32 [rows], tokens that may still be generated; 0 for rows without a sequence
    seeds: Any  # uint32 [rows, 2]
    stop_tokens: Any  # i32 [rows, STOP_TOKENS_MAX], filled up with -1
    temperatures: Any  # f32 [rows]
    adapters: Any  # i32 [rows], the slot of each row's adapters (rollcast.policy.sampling.adapter_slots)
    noise_scale: Any  # f32: 1 samples, 0 is greedy


class Slice(NamedTuple):
    """The tokens of a slice. Only the first counts[r] steps of row r are valid."""

    tokens: Any  # i32 [steps, rows]
    logprobs: Any  # f32 [steps, rows]
    counts: Any  # i32 [rows]
    routes: Any  # [steps, rows, layers, experts_per_token], of the token before each; None: they are not recorded


class _Loop(NamedTuple):
    index: jax.Array  # i32, steps done
    last: jax.Array
    left: jax.Array  # i32 [rows], tokens that may still be generated; 0 once a row has stopped
    made: Slice
    pages: Pages


def decode_slice(
    model: Decoder,
    pages: Pages,
    controls: Controls,
    steps: int,
    limit: jax.Array,
    floor: jax.Array,
    *,
    record_routes: bool = False,
    mesh: Mesh | None = None,
) -> tuple[Slice, Pages]:
    """Generate until every row has ended or has ``limit`` new tokens, or only ``floor`` rows still run.

    steps: the most tokens per row that the slice has room for; ``limit`` is at most that. Returns the slice and the
    pages with the new tokens' keys and values. record_routes: whether the slice gets the routes of the tokens that are
    read (rollcast.wire.routes), for which the model needs experts. mesh: the devices; None: one.
    """
    rows = controls.last.shape[0]
    shape = (steps, rows)
    one = model.config.route_shape
    routes = jnp.zeros((*shape, one.layers, one.experts_per_token), one.dtype) if record_routes else None
    made = Slice(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32), jnp.zeros(rows, jnp.int32), routes)

    def running(loop: _Loop) -> jax.Array:
        return (loop.index < limit) & (jnp.sum(loop.left > 0) > floor)

    def advance(loop: _Loop) -> _Loop:
        goes_on = loop.left > 0
        starts = controls.starts + loop.made.counts
        # Rows that have ended read nothing and write to the unused page.
        hidden, pages = extend(
            model,
            loop.pages,
            controls.tables,
            loop.last[:, None],
            jnp.where(goes_on, starts, 0),
            goes_on.astype(jnp.int32),
            mesh,
        )
        tokens, logprobs = sample_tokens(model.logits(hidden.states[:, 0]), starts + 1, controls)
        stopped = jnp.any(tokens[:, None] == controls.stop_tokens, axis=1)
        made = Slice(
            loop.made.tokens.at[loop.index].set(tokens),
            loop.made.logprobs.at[loop.index].set(logprobs),
            loop.made.counts + goes_on.astype(jnp.int32),
            None if hidden.routed is None or routes is None else _with_step(loop, hidden.routed.routes[:, 0]),
        )
        left = jnp.where(stopped, 0, jnp.maximum(loop.left - 1, 0))
        return _Loop(loop.index + 1, tokens, left, made, pages)

    end = jax.lax.while_loop(running, advance, _Loop(jnp.int32(0), controls.last, controls.budgets, made, pages))
    return end.made, end.pages


def _with_step(loop: _Loop, routes: jax.Array) -> jax.Array:
    """Return the slice's routes with those of this step's tokens, [rows, layers, experts_per_token]."""
    found: jax.Array = loop.made.routes.at[loop.index].set(routes)
    return found


def sample_tokens(logits: jax.Array, positions: jax.Array, controls: Controls) -> tuple[jax.Array, jax.Array]:
    """Sample tokens i32 [rows] for ``positions`` from logits f32 [rows, vocabulary], and log p f32 [rows] of each."""
    vocabulary = logits.shape[-1]
    scaled = logits / controls.temperatures[:, None]
    # The barrier keeps XLA from recomputing this for each of its uses: the noise costs more than all of them. XLA's
    # argmax is slow on a CPU; the first index of the highest value is the same.
    indices = jnp.arange(vocabulary, dtype=jnp.int32)[None, :]
    noise = gumbel(controls.seeds[:, None, :], positions[:, None], indices)
    noisy = jax.lax.optimization_barrier(scaled + controls.noise_scale * noise)
    highest = noisy.max(axis=-1, keepdims=True)
    tokens = jnp.min(jnp.where(noisy == highest, indices, vocabulary - 1), axis=-1)
    picked = jnp.take_along_axis(scaled, tokens[:, None], axis=-1)[:, 0]
    return tokens, picked - jax.nn.logsumexp(scaled, axis=-1)


def stop_row(stop_token_ids: Sequence[int]) -> list[int]:
    """Return stop tokens as a row of Controls.stop_tokens, filled up with -1."""
    return [*stop_token_ids, *[_NO_TOKEN] * (STOP_TOKENS_MAX - len(stop_token_ids))]
