"""Test the layer of experts: its results, routes that are given, and padding."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.experts.routes import no_route, route_bytes_per_token, route_dtype
from rollcast.policy.logprobs import Forward, Scores, score
from rollcast.policy.params import Params, initial_params
from tests.policy.test_model import TOKENS, forward, row
from tests.policy.tiny import TINY_EXPERTS, reference_logits

PARAMS = initial_params(TINY_EXPERTS, 5)
BATCH = [jnp.concatenate(pair) for pair in zip(row(TOKENS, right=3), row(TOKENS[::-1], right=3), strict=True)]


@functools.partial(jax.jit, static_argnames="forward")
def scored(params: Params, routes: jax.Array | None = None, forward: Forward = Forward()) -> Scores:  # noqa: B008
    return score(TINY_EXPERTS, params, *BATCH, jnp.ones(2), routes, forward)


@pytest.mark.parametrize("normalised", [True, False])
def test_logits_agree_with_an_independent_forward_pass(normalised: bool) -> None:
    config = TINY_EXPERTS.model_copy(update={"normalised_routes": normalised})
    logits = forward(config, PARAMS, *row(TOKENS, left=2, right=1))[0, 2:-1]
    np.testing.assert_allclose(logits, reference_logits(config, PARAMS, TOKENS), atol=3e-6)


def test_the_routes_that_were_used_give_the_same_values_again() -> None:
    own = scored(PARAMS)
    assert own.routed is not None
    routes = own.routed.routes
    assert routes.shape == (2, 10, TINY_EXPERTS.layers, TINY_EXPERTS.experts_per_token)
    assert routes.dtype == route_dtype(TINY_EXPERTS) == jnp.uint8
    again = scored(PARAMS, routes)
    assert np.array_equal(own.statistics.logprobs, again.statistics.logprobs)


def test_other_routes_are_followed_and_tokens_without_a_record_route_by_themselves() -> None:
    own = scored(PARAMS)
    assert own.routed is not None
    unknown = jnp.full_like(own.routed.routes, no_route(TINY_EXPERTS))
    assert np.array_equal(scored(PARAMS, unknown).statistics.logprobs, own.statistics.logprobs)
    # The first row's fourth token goes elsewhere: tokens before it, and the other row, do not notice.
    elsewhere = (own.routed.routes[0, 3] + 1) % TINY_EXPERTS.experts
    found = scored(PARAMS, unknown.at[0, 3].set(elsewhere))
    assert found.routed is not None
    assert np.array_equal(found.routed.routes[0, 3], elsewhere)
    changed = np.asarray(found.statistics.logprobs != own.statistics.logprobs)
    assert changed[0, 4:7].any()
    assert not changed[0, :4].any()
    assert not changed[1].any()


def test_routes_have_two_bytes_where_one_has_no_room_for_the_mark() -> None:
    most = TINY_EXPERTS.model_copy(update={"experts": 255})
    more = TINY_EXPERTS.model_copy(update={"experts": 256})
    assert (route_dtype(most), no_route(most), route_bytes_per_token(most)) == (np.uint8, 255, 4)
    assert (route_dtype(more), no_route(more), route_bytes_per_token(more)) == (np.uint16, 65_535, 8)


def test_padding_counts_for_no_load() -> None:
    found = scored(PARAMS).routed
    assert found is not None
    sent = np.asarray(jax.nn.one_hot(found.routes[:, :7], TINY_EXPERTS.experts)).sum((0, 1, 3))
    np.testing.assert_array_equal(found.load.counts, sent)
    np.testing.assert_array_equal(found.load.tokens, [14.0, 14.0])
    np.testing.assert_allclose(found.load.probabilities.sum(-1), 14.0, rtol=1e-6)


def test_gradients_through_recomputed_blocks_are_those_of_small_changes() -> None:
    own = scored(PARAMS).routed
    assert own is not None

    def total(params: Params, forward: Forward) -> jax.Array:
        return jnp.sum(scored(params, own.routes, forward).statistics.logprobs)

    gradients = jax.grad(total)(PARAMS, Forward(remat=True))
    for end in ("router", "expert_gate", "expert_up", "expert_down"):
        name = f"layers.0.feed_forward.{end}.kernel"
        step = 1e-2 * np.sign(np.asarray(gradients[name]))
        ends = [total(PARAMS | {name: PARAMS[name] + sign * step}, Forward()) for sign in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2, np.sum(step * gradients[name]), rtol=0.02)
