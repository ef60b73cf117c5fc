from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.params import Params, bind, initial_params
from rollcast.policy.sampling.kv_cache import copy_pages, empty_pages, extend, page_bytes
from tests.policy.test_model import TOKENS
from tests.policy.tiny import TINY, reference_logits

PAGE = 2
TABLE = (5, 2, 7, 4)  # pages in no order
FAR = 3  # a second sequence of which nothing may be seen: its page


def logits_by_pieces(params: Params, pieces: list[list[int]], pad: int) -> list[jax.Array]:
    """Logits after every token, read piece by piece beside a longer sequence; each piece padded by ``pad`` tokens."""
    pages = empty_pages(TINY, pages=9, page_tokens=PAGE)
    pages = jax.tree.map(lambda layer: layer + 100.0, pages)  # what is not ours must not be seen
    tables = jnp.array([TABLE, (FAR, 8, FAR, 8)], jnp.int32)
    read = jax.jit(lambda pages, *inputs: extend(bind(TINY, params), pages, tables, *inputs))
    model = jax.jit(lambda hidden: bind(TINY, params).logits(hidden))
    found: list[jax.Array] = []
    start = 0
    for piece in pieces:
        tokens = jnp.array([piece + [3] * pad, [1] * (len(piece) + pad)], jnp.int32)
        hidden, pages = read(pages, tokens, jnp.array([start, 7], jnp.int32), jnp.array([len(piece), 0], jnp.int32))
        found += list(model(hidden)[0, : len(piece)])
        start += len(piece)
    return found


@pytest.mark.parametrize("pad", [0, 2])
def test_tokens_read_in_pieces_give_the_training_forwards_logits(pad: int) -> None:
    params = initial_params(TINY, 5)
    expected = reference_logits(TINY, params, TOKENS)
    found = logits_by_pieces(params, [TOKENS[:3], TOKENS[3:4], TOKENS[4:]], pad)
    np.testing.assert_allclose(np.stack(found), expected, atol=3e-6)


def test_longer_sequences_beside_it_change_nothing_to_the_bit() -> None:
    params = initial_params(TINY, 5)
    tables = jnp.array([TABLE, (1, 3, 6, 8)], jnp.int32)
    pages = empty_pages(TINY, pages=9, page_tokens=PAGE)
    read = jax.jit(lambda *inputs: extend(bind(TINY, params), pages, tables, *inputs)[0][0])
    tokens, counts = jnp.array([[4], [5]], jnp.int32), jnp.array([1, 1], jnp.int32)
    short, long = (read(tokens, jnp.array([1, beside], jnp.int32), counts) for beside in (1, 7))
    assert np.array_equal(short, long)


def test_pages_are_copied_whole_and_nothing_else_changes() -> None:
    pages = empty_pages(TINY, pages=4, page_tokens=PAGE)
    pages = jax.tree.map(lambda layer: jnp.arange(layer.size, dtype=jnp.float32).reshape(layer.shape), pages)
    copied = jax.jit(copy_pages)(pages, jnp.array([2, 0]), jnp.array([3, 0]))
    for before, after in zip(jax.tree.leaves(pages), jax.tree.leaves(copied), strict=True):
        assert np.array_equal(after, before[jnp.array([0, 1, 2, 2])])
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(pages)) == 4 * page_bytes(TINY, PAGE)
