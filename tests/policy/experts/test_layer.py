"""Test the layer of experts: its results, routes that are given, and padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.experts.layer import Routing, _weights
from rollcast.policy.logprobs import Scores, score
from rollcast.policy.params import Params, bind, initial_params
from rollcast.wire.routes import RouteShape
from tests.policy.test_model import TOKENS, forward, row
from tests.policy.tiny import TINY, TINY_EXPERTS, reference_logits

PARAMS = initial_params(TINY_EXPERTS, 5)
BATCH = [jnp.concatenate(pair) for pair in zip(row(TOKENS, right=3), row(TOKENS[::-1], right=3), strict=True)]
UNKNOWN = np.full((2, 10, 2, 2), TINY_EXPERTS.route_shape.no_route, np.uint8)


@jax.jit
def scored(routes: jax.Array) -> Scores:
    return score(TINY_EXPERTS, PARAMS, *BATCH, jnp.ones(2), routes)


@pytest.mark.parametrize("normalised", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_logits_agree_with_an_independent_forward_pass(normalised: bool) -> None:
    config = TINY_EXPERTS.model_copy(update={"layers": 1, "normalised_routes": normalised})
    logits = forward(config, PARAMS, *row(TOKENS, left=2, right=1))[0, 2:-1]
    np.testing.assert_allclose(logits, reference_logits(config, PARAMS, TOKENS), atol=3e-6)


def test_the_routes_that_were_used_give_the_same_values_again() -> None:
    own = scored(UNKNOWN)
    assert own.routed is not None
    routes = own.routed.routes
    assert routes.shape == (2, 10, TINY_EXPERTS.layers, TINY_EXPERTS.experts_per_token)
    assert routes.dtype == TINY_EXPERTS.route_shape.dtype == jnp.uint8
    assert np.array_equal(own.statistics.logprobs, scored(routes).statistics.logprobs)


def test_given_routes_are_followed_for_the_tokens_that_have_them() -> None:
    own = scored(UNKNOWN)
    assert own.routed is not None
    # The first row's fourth token goes elsewhere: tokens before it, and the other row, do not notice.
    routes = UNKNOWN.copy()
    routes[0, 3] = (np.asarray(own.routed.routes)[0, 3] + 1) % TINY_EXPERTS.experts
    found = scored(routes)
    assert found.routed is not None
    assert np.array_equal(found.routed.routes[0, 3], routes[0, 3])
    changed = np.asarray(found.statistics.logprobs != own.statistics.logprobs)
    assert changed[0, 4:7].any()
    assert not changed[0, :4].any()
    assert not changed[1].any()


def test_experts_without_any_probability_have_finite_weights() -> None:
    weights = _weights(TINY_EXPERTS, jnp.array([[1.0, 0, 0, 0, 0, 0]]), jnp.array([[3, 5]], jnp.int32))
    assert np.array_equal(weights, [[0.0, 0.0]])


def test_routes_have_two_bytes_where_one_has_no_room_for_the_mark() -> None:
    most, more = (TINY_EXPERTS.model_copy(update={"experts": experts}).route_shape for experts in (255, 256))
    assert (most.dtype, most.no_route, most.token_bytes) == (np.uint8, 255, 4)
    assert (more.dtype, more.no_route, more.token_bytes) == (np.uint16, 65_535, 8)
    assert RouteShape.described(TINY_EXPERTS.model_dump_json()) == TINY_EXPERTS.route_shape
    assert RouteShape.described(TINY.model_dump_json()) is None


def test_padding_counts_for_no_load() -> None:
    found = scored(UNKNOWN).routed
    assert found is not None
    sent = np.asarray(jax.nn.one_hot(found.routes[:, :7], TINY_EXPERTS.experts)).sum((0, 1, 3))
    np.testing.assert_array_equal(found.load.counts, sent)
    np.testing.assert_array_equal(found.load.tokens, [14.0, 14.0])
    np.testing.assert_allclose(found.load.probabilities.sum(-1), 14.0, rtol=1e-6)


def test_gradients_are_those_of_small_changes() -> None:
    config = TINY_EXPERTS.model_copy(update={"layers": 1})
    x, dy = np.random.default_rng(0).normal(0, 1, (2, 2, 5, config.width)).astype(np.float32)

    @jax.jit
    def total(params: Params, x: jax.Array, routes: jax.Array) -> tuple[jax.Array, jax.Array]:
        mixed, routed = bind(config, params).layers[0].feed_forward(x, Routing(routes=routes))
        return jnp.sum(mixed * dy), routed.routes

    start = {name: value for name, value in PARAMS.items() if not name.startswith("layers.1.")}
    _, routes = total(start, x, UNKNOWN[:, :5, 0])
    of_params, of_x = jax.jit(jax.grad(lambda *ends: total(*ends, routes)[0], argnums=(0, 1)))(start, x)
    changes = {name: 1e-2 * np.sign(np.asarray(of_params[name])) for name in start if ".feed_forward." in name}
    for name, change in changes.items():
        ends = [total(start | {name: start[name] + sign * change}, x, routes)[0] for sign in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2, np.sum(change * of_params[name]), rtol=0.02)
    ends = [total(start, x + sign * 1e-2 * np.sign(of_x), routes)[0] for sign in (1, -1)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2, 1e-2 * np.sum(np.abs(of_x)), rtol=0.02)
