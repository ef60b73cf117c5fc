"""Compute log-probabilities of given tokens under the policy: one definition for learner, audits and tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from rollcast.policy.attention import Attend, Kernel, segment_attend
from rollcast.policy.config import ModelConfig
from rollcast.policy.experts.layer import CHOSEN, Routed, Routing
from rollcast.policy.logits import NoiseKeys, Tiles, token_scores
from rollcast.policy.model import Run, looked_up
from rollcast.policy.params import Params, bind
from rollcast.policy.stacking import stacked


@dataclass(frozen=True, slots=True)
class Forward:
    """The way the training forward is computed. It affects time and memory, and values only by rounding.

    remat: whether activations inside a block are discarded and recomputed in the backward pass.
    tiles: the size of a tile of logits.
    rows: the sharding of the rows of activations; None: all are on one device.
    kernel: the attention kernel; see segment_attend.
    packed: whether rows may hold several sequences; see segment_attend.
    """

    remat: bool = False
    tiles: Tiles = field(default_factory=Tiles)
    rows: NamedSharding | None = None
    kernel: Kernel | None = None
    packed: bool = True

    def attend(self, segments: jax.Array) -> Attend:
        """Return the attention function for a batch's segments, with the configured kernel and sharding."""
        mesh = None if self.rows is None else self.rows.mesh
        return segment_attend(segments, self.kernel, mesh, packed=self.packed)

    def routing(self, segments: jax.Array, routes: jax.Array | None) -> Routing:
        """Return how the tokens of a batch's segments are routed; padding does not count for the experts' loads."""
        return Routing(segments > 0, routes, None if self.rows is None else self.rows.mesh)

    def around(self, run: Run) -> Run:
        """Wrap a block's computation with the configured sharding and rematerialisation; for Decoder."""

        def placed(x: jax.Array) -> tuple[jax.Array, Routed | None]:
            after, routed = run(self._placed(x))
            return self._placed(after), routed

        # Without rematerialisation products are kept, and what fused kernels make of them is computed again: the loop
        # over layers would write each intermediate value to memory. Nothing of a loop's forward pass could be merged
        # with its recomputation, so no barrier is needed.
        kept = jax.checkpoint_policies.save_only_these_names(CHOSEN)
        if not self.remat:
            policies = jax.checkpoint_policies
            kept = policies.save_from_both_policies(policies.dots_saveable, kept)
        recomputed: Run = jax.checkpoint(placed, prevent_cse=False, policy=kept)
        return recomputed

    def look_up(self, embedding: jax.Array, tokens: jax.Array, dtype: Any) -> jax.Array:
        """Look up tokens in an embedding whose width is divided among the devices that rows are divided among.

        Each device looks up its part of the width for the tokens of all, and the parts are exchanged; so neither the
        embedding nor its gradient is ever whole on a device, and no sum crosses devices.
        """
        if self.rows is None:
            return looked_up(embedding, tokens, dtype)
        data, fsdp, _ = self.rows.mesh.axis_names
        of_all = self._constrained(tokens, data)
        parts = self._constrained(looked_up(embedding, of_all, dtype), data, None, fsdp)
        return self._placed(parts)

    def _constrained(self, x: jax.Array, *axes: str | None) -> jax.Array:
        assert self.rows is not None
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.rows.mesh, PartitionSpec(*axes)))

    def _placed(self, x: jax.Array) -> jax.Array:
        return x if self.rows is None else jax.lax.with_sharding_constraint(x, self.rows)


PLAIN = Forward()


class TokenStatistics(NamedTuple):
    """The statistics of each token, f32 [rows, time]; 0 for the first token of a sequence, which nothing predicts."""

    logprobs: jax.Array  # log p(token | tokens before it) at the token's temperature
    entropies: jax.Array  # entropy of the distribution that the token was sampled from, nats
    variances: jax.Array  # variance of log p under that distribution, nats squared; not differentiated
    margins: jax.Array  # how far the token is from the one that its seed samples, nats; 0 without seeds


class Scores(NamedTuple):
    """What the training forward gives."""

    statistics: TokenStatistics
    routed: Routed | None
    """The routes that were used, [rows, time, layers, experts_per_token] in the dtype of ModelConfig.route_shape,
    and the experts' loads by layer; None without experts."""


def completion_logprobs(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    temperature: jax.Array,
    routes: jax.Array | None = None,
    seeds: jax.Array | None = None,
    forward: Forward = PLAIN,
) -> TokenStatistics:
    """Return the statistics of ``score``, with its arguments."""
    return score(config, params, tokens, positions, segments, temperature, routes, seeds, forward).statistics


def score(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    temperature: jax.Array,
    routes: jax.Array | None = None,
    seeds: jax.Array | None = None,
    forward: Forward = PLAIN,
) -> Scores:
    """Run the training forward on tokens i32 [rows, time] and score every token.

    segments: see segment_attend. temperature: f32 [rows], or [rows, time] if a row holds several sequences; padding may
    have any temperature. routes: experts to use instead of the routers' choice, integers [rows, time, layers,
    experts_per_token], those of a token where it is read; tokens without a record, which have
    rollcast.wire.routes.RouteShape.no_route, and all tokens where it is None, are routed by the model. seeds: u32
    [rows, time, 2], the words of the seed that each token was sampled with, for margins; None: there are none.
    """
    model = bind(config, stacked(params))
    around, routing = forward.around, forward.routing(segments, routes)
    hidden = model(tokens, positions, forward.attend(segments), around, forward.look_up, routing)
    per_token = jnp.where(segments > 0, temperature if temperature.ndim == 2 else temperature[:, None], 1.0)
    # The hidden state at t predicts the token at t + 1; the last column predicts nothing and only keeps the shape.
    following = ((0, 0), (0, 1))
    targets, scale = jnp.pad(tokens[:, 1:], following), jnp.pad(per_token[:, 1:], following, constant_values=1.0)
    noise = None
    if seeds is not None:
        noise = NoiseKeys(jnp.pad(seeds[:, 1:], (*following, (0, 0))), jnp.pad(positions[:, 1:], following))
    scores = token_scores(hidden.states, model.output_weights(), targets, scale, forward.tiles, noise)
    goes_on = jnp.pad((segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0), ((0, 0), (1, 0)))
    statistics = TokenStatistics(*(jnp.where(goes_on, jnp.roll(one, 1, axis=1), 0.0) for one in scores))
    return Scores(statistics, hidden.routed)
