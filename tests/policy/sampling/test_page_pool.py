from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.policy.sampling.page_pool import NOBODY, PagePool, Reservation
from rollcast.runtime.errors import CacheTooSmall


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


def test_what_does_not_fit_now_waits_and_what_never_fits_is_refused() -> None:
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
        assert NOBODY not in pages
