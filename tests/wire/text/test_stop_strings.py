from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.wire.text.stop_strings import StopStrings

PIECES = [b"a", b"b", b"ab", b"\xc3", b"\xa9", b"\n", b"END"]  # the fourth and fifth are one character together


def decode(ids: Sequence[int]) -> str:
    return b"".join(PIECES[token] for token in ids).decode(errors="replace")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 7), st.sampled_from([("\n",), ("aba",), ("é", "ENDa")]))
def test_the_first_token_that_completes_a_string_is_found_however_tokens_come(
    tokens: list[int], slice_tokens: int, strings: tuple[str, ...]
) -> None:
    stop = StopStrings(strings, decode)
    expected = next(
        (count for count in range(len(tokens) + 1) if any(one in decode(tokens[:count]) for one in strings)), None
    )
    found, known = None, 0
    while found is None and known < len(tokens):
        found = stop.end(tokens[: known + slice_tokens], known)
        known = min(len(tokens), known + slice_tokens)
    assert found == expected


def test_what_comes_after_an_end_is_cut() -> None:
    assert StopStrings(("b",), decode).cut([0, 1, 0]) == [0, 1]
    assert StopStrings(("x",), decode).cut([0, 1, 0]) == [0, 1, 0]
    assert StopStrings((), decode).cut([0, 1, 0]) == [0, 1, 0]


def test_an_empty_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(("a", ""), decode)
