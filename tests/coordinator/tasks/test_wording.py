from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.tasks.wording import PIECES_MAX, fixed_pieces, other_characters
from rollcast.wire.text.tokenizer import Tokenizer


def test_common_start_end_and_words() -> None:
    prompts = ["Add 1 to 25 with care: now", "Add 77 to 3 with zeal: now", "Add 5 to 5 with care: now"]
    pieces = fixed_pieces(prompts)
    assert pieces == ("Add ", ": now", "care", "with")
    assert other_characters(pieces, prompts) == " 12357aelotz"


def test_one_prompt_has_no_fixed_wording() -> None:
    assert fixed_pieces(["Add 1"]) == ()
    assert fixed_pieces([]) == ()
    assert other_characters((), ["ba", "ab"]) == "ab"


def test_equal_prompts_are_one_piece() -> None:
    assert fixed_pieces(["same", "same"]) == ("same",)


@given(st.lists(st.text(alphabet="abc 12+=", max_size=20), min_size=1, max_size=12))
@settings(deadline=None, max_examples=100)
def test_every_text_it_saw_can_be_encoded(texts: list[str]) -> None:
    pieces = fixed_pieces(texts)
    assert len(pieces) <= PIECES_MAX
    tokenizer = Tokenizer(pieces, other_characters(pieces, texts))
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text
