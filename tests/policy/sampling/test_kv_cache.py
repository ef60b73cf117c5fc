"""Test the cache of keys and values, and the pages that hold it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.policy.params import Params, bind, initial_params
from rollcast.policy.sampling import kv_cache
from rollcast.policy.sampling.kv_cache import copy_pages, empty_pages, extend, page_bytes
from rollcast.policy.sampling.page_pool import NULL_PAGE, PagePool, Reservation
from rollcast.runtime.errors import CacheTooSmall
from tests.compiling import OPTIMISED
from tests.policy.test_model import TOKENS
from tests.policy.tiny import TINY, reference_logits


def reserved(pool: PagePool, prompt: tuple[int, ...], tokens: int) -> Reservation:
    made = pool.reserve(prompt, tokens)
    assert made is not None
    return made


def test_a_prompt_is_filled_once_and_its_last_page_copied_for_each() -> None:
    pool = PagePool(pages=10, page_tokens=4)
    prompt = (1, 2, 3, 4, 5)
    first, second = reserved(pool, prompt, 9), reserved(pool, prompt, 9)
    assert (first.first, second.first) == (True, False)
    assert first.prompt is second.prompt
    assert [one.copy for one in (first, second)] == [(first.prompt.pages[1], one.own[0]) for one in (first, second)]
    assert first.table(1)[:1] == second.table(1)[:1] == first.prompt.pages[:1]
    assert len(first.table(1)) == 3
    assert not set(first.own) & set(second.own)
    assert pool.free_pages == 10 - 2 - 2 * 2


def test_a_prompt_that_ends_with_its_page_is_not_copied() -> None:
    pool = PagePool(pages=4, page_tokens=4)
    assert reserved(pool, (1, 2, 3, 4), 8).copy is None
    assert reserved(pool, (), 4).copy is None


def test_a_sequence_that_does_not_fit_now_waits_and_one_that_never_fits_is_refused() -> None:
    pool = PagePool(pages=4, page_tokens=4)
    held = reserved(pool, (1,), 8)
    assert pool.reserve((2,), 8) is None
    pool.release(held)
    assert pool.reserve((2,), 8) is not None
    pool.require(12)
    with pytest.raises(CacheTooSmall, match="13 tokens does not fit into a cache of 16"):
        pool.require(13)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9), st.booleans()), max_size=30))
def test_no_page_is_ever_given_twice(asked: list[tuple[int, int, bool]]) -> None:
    pool = PagePool(pages=12, page_tokens=2)
    held: list[Reservation] = []
    for length, more, release in asked:
        made = pool.reserve((7,) * length, length + more)
        held += [made] if made is not None else []
        if release and held:
            pool.release(held.pop(0))
        pages = [page for one in held for page in one.own]
        pages += [page for prompt in {id(one.prompt): one.prompt for one in held}.values() for page in prompt.pages]
        assert len(pages) == len(set(pages)) == 12 - pool.free_pages
        assert NULL_PAGE not in pages


PAGE = 2

TABLE = (5, 2, 7, 4)  # pages in no order

FAR = 3  # the page of a second sequence, which must not be visible


def logits_by_pieces(params: Params, pieces: list[list[int]], pad: int) -> list[jax.Array]:
    """Return logits after every token, read in pieces next to a longer sequence; ``pad`` tokens pad each piece."""
    pages = empty_pages(TINY, pages=9, page_tokens=PAGE)
    pages = jax.tree.map(lambda layer: layer + 100.0, pages)  # other sequences must not be visible
    tables = jnp.array([TABLE, (FAR, 8, FAR, 8)], jnp.int32)
    read = jax.jit(lambda pages, *inputs: extend(bind(TINY, params), pages, tables, *inputs))
    model = jax.jit(lambda hidden: bind(TINY, params).logits(hidden))
    found: list[jax.Array] = []
    start = 0
    for piece in pieces:
        tokens = jnp.array([piece + [3] * pad, [1] * (len(piece) + pad)], jnp.int32)
        hidden, pages = read(pages, tokens, jnp.array([start, 7], jnp.int32), jnp.array([len(piece), 0], jnp.int32))
        found += list(model(hidden.states)[0, : len(piece)])
        start += len(piece)
    return found


@pytest.mark.parametrize("pad", [0, 2])
def test_tokens_read_in_pieces_give_the_training_forwards_logits(pad: int) -> None:
    params = initial_params(TINY, 5)
    expected = reference_logits(TINY, params, TOKENS)
    found = logits_by_pieces(params, [TOKENS[:3], TOKENS[3:4], TOKENS[4:]], pad)
    np.testing.assert_allclose(np.stack(found), expected, atol=3e-6)


def test_a_last_turn_that_reaches_beyond_the_table_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kv_cache.RUN_TOKENS, "cpu", 3 * PAGE)  # four pages are two turns, five are three and two
    random = np.random.default_rng(0)
    keys, values = (jnp.asarray(random.normal(size=(9, 2, *rest)), jnp.float32) for rest in ((4, PAGE), (PAGE, 4)))
    queries = jnp.asarray(random.normal(size=(2, 1, 4, 4)), jnp.float32)
    positions = jnp.array([[7], [2]], jnp.int32)

    def attended(*more: int) -> jax.Array:
        tables = jnp.array([(*TABLE, *more), (1, 3, 6, 8, *more)], jnp.int32)
        return jax.jit(kv_cache.attend_to_pages)(queries, keys, values, tables, positions)

    np.testing.assert_allclose(attended(), attended(0), atol=1e-6)
    np.testing.assert_allclose(attended(), attended(0, 0, 0), atol=1e-6)


@pytest.mark.parametrize("run_tokens", [64, 1024])
def test_every_turn_reads_a_good_number_of_tokens_at_every_length(run_tokens: int) -> None:
    for pages in range(1, 3000):
        taken = kv_cache.turn_pages(16, pages, run_tokens)
        assert min(pages * 16, run_tokens // 2) <= taken * 16 <= run_tokens, pages
        assert -(-pages // taken) == -(-pages * 16 // run_tokens), pages


def test_longer_sequences_in_the_batch_change_no_bit() -> None:
    params = initial_params(TINY, 5)
    tables = jnp.array([TABLE, (1, 3, 6, 8)], jnp.int32)
    pages = empty_pages(TINY, pages=9, page_tokens=PAGE)
    read = jax.jit(
        lambda *inputs: extend(bind(TINY, params), pages, tables, *inputs)[0].states[0], compiler_options=OPTIMISED
    )
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
