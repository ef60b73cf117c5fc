"""Test tokenizers of a run, and strings that end a rollout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import MalformedMessage, TaskError
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from rollcast.wire.text.stop_strings import StopStrings
from rollcast.wire.text.tokenizer import UNKNOWN, Tokenizer, TokenizerRecord, read_record

TOKENIZER = Tokenizer(("State the final answer", "State", " + "), "0123456789+-= St")


def test_ids_are_laid_out_as_documented() -> None:
    assert (TOKENIZER.pad_id, TOKENIZER.eos_id) == (0, 1)
    assert TOKENIZER.size == 2 + 3 + 16
    assert TOKENIZER.encode("State") == [3]
    assert TOKENIZER.encode("0") == [5]


def test_the_longest_piece_wins() -> None:
    assert TOKENIZER.encode("State the final answer1 + 2") == [2, 6, 4, 7]


def test_a_prefix_of_a_piece_falls_back_to_characters() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("Stt")) == "Stt"


def test_an_unknown_character_is_named() -> None:
    with pytest.raises(TaskError, match="'x'"):
        TOKENIZER.encode("1x")


def test_decode_stops_at_the_end_of_sequence() -> None:
    assert TOKENIZER.decode([*TOKENIZER.encode("12"), TOKENIZER.eos_id, *TOKENIZER.encode("3"), 0]) == "12"


@pytest.mark.parametrize("token_id", [0, -1, -7, 10**6, TOKENIZER.size])
def test_ids_without_text_are_visible(token_id: int) -> None:
    assert TOKENIZER.decode([token_id]) == UNKNOWN


@pytest.mark.parametrize(("pieces", "characters"), [(("a", "a"), "b"), (("a",), "a"), (("",), "a"), ((), "bb")])
def test_ambiguous_alphabets_are_refused(pieces: tuple[str, ...], characters: str) -> None:
    with pytest.raises(TaskError):
        Tokenizer(pieces, characters)


@given(st.lists(st.sampled_from(["State the final answer", "State", " + ", *"0123456789+-= St"])))
@settings(deadline=None, max_examples=100)
def test_text_survives_a_round_trip(parts: list[str]) -> None:
    text = "".join(parts)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.integers(-(2**31), 2**31)))
@settings(deadline=None, max_examples=100)
def test_decode_is_defined_for_all_ids(ids: list[int]) -> None:
    assert isinstance(TOKENIZER.decode(ids), str)


def test_json_round_trip() -> None:
    assert Tokenizer.from_json(TOKENIZER.to_json()) == TOKENIZER


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["pieces", "characters", "x"]), inner),
    max_leaves=8,
)


@given(JSON_VALUES.map(json.dumps) | st.text())
@settings(deadline=None, max_examples=100)
def test_malformed_json_is_refused(text: str) -> None:
    try:
        tokenizer = Tokenizer.from_json(text)
    except MalformedMessage:
        return
    assert Tokenizer.from_json(tokenizer.to_json()) == tokenizer


def test_deep_json_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        Tokenizer.from_json("[" * 100_000)


def test_the_hubs_form_of_it_gives_the_same_ids(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    files = TOKENIZER.to_hub()
    library = tokenizers.Tokenizer.from_str(json.dumps(files["tokenizer.json"]))
    for text in ("State the final answer1 + 2", "StateState", "Stt 12-", " +  + "):
        assert library.encode(text).ids == TOKENIZER.encode(text)
        assert library.decode(TOKENIZER.encode(text)) == text
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values))
    hub = HubTokenizer(tmp_path)
    assert (hub.size, hub.stop_ids) == (TOKENIZER.size, TOKENIZER.stop_ids)


def test_its_record_is_its_size() -> None:
    assert read_record(TOKENIZER.to_json()) == TokenizerRecord(TOKENIZER.size, "")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "{" * 5000, '{"hub": 1}', '{"hub": {"size": -1, "sha256": ""}}', '{"hub": {"size": 5}}']
)
def test_malformed_records_are_refused(text: str) -> None:
    with pytest.raises(MalformedMessage):
        read_record(text)


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


def test_tokens_after_an_end_are_cut() -> None:
    assert StopStrings(("b",), decode).cut([0, 1, 0]) == [0, 1]
    assert StopStrings(("x",), decode).cut([0, 1, 0]) == [0, 1, 0]
    assert StopStrings((), decode).cut([0, 1, 0]) == [0, 1, 0]


def test_an_empty_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(("a", ""), decode)


def test_no_stop_string_is_sought_in_earlier_turns() -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join("ab"[one] for one in ids)

    assert StopStrings(("ab",), decode, first=2).end([0, 1, 1, 0, 1, 0], 2) == 5
    assert StopStrings(("ab",), decode, first=1).end([0, 1, 1], 1) is None  # "a" is of an earlier turn
