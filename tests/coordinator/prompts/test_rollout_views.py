"""Test the bounds of pages of rollouts, and the pieces of a text that have probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.prompts import rollout_views
from coordinator.prompts.rollout_views import rollout_view, rollouts_page, token_pieces
from coordinator.prompts.stored_rollouts import RolloutFilter
from rollcast.wire.text.tokenizer import UNKNOWN
from tests.coordinator.prompts.stored_run import TOKENIZER, stored_run


async def test_a_page_looks_at_so_many_rollouts_and_says_where_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = await stored_run(tmp_path)
    full = rollouts_page(folder, TOKENIZER, 3, RolloutFilter())
    assert ([one.rollout_id for one in full.rollouts], full.next_before) == ([4, 3, 2], 2)
    monkeypatch.setattr(rollout_views, "PAGE_SCANNED_MAX", 2)
    wanted, before, pages = RolloutFilter(problem="sum:1"), 9, list[list[int]]()
    while True:
        page = rollouts_page(folder, TOKENIZER, 3, wanted, before)
        pages.append([one.rollout_id for one in page.rollouts])
        if page.next_before is None:
            break
        before = page.next_before
    assert pages == [[], [1]]


async def test_only_the_first_tokens_of_a_rollout_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_views, "TOKENS_SHOWN_MAX", 5)
    view = rollout_view(await stored_run(tmp_path), TOKENIZER, 4)
    assert view is not None
    assert (view.headline.tokens, view.tokens_left_out) == (14, 9)
    assert [turn.text for turn in view.turns] == ["01234"]


async def test_a_list_shows_how_an_episode_goes_on_after_its_first_turn(tmp_path: Path) -> None:
    folder = await stored_run(tmp_path)
    (newest, *others) = rollouts_page(folder, TOKENIZER, 4, RolloutFilter()).rollouts
    view = rollout_view(folder, TOKENIZER, newest.rollout_id)
    assert view is not None
    assert len(view.turns) > 1
    assert newest.beginning.splitlines() == [turn.text for turn in view.turns]
    assert {len(one.beginning.splitlines()) for one in others} == {1}


class Bytes:
    """Decodes ids as bytes of UTF-8, as the tokenizers of published models do."""

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")


def test_tokens_that_make_one_character_are_one_piece() -> None:
    text = "aé✓" + UNKNOWN
    ids = [*text.encode()[:-3], 0xFF]
    pieces = token_pieces(Bytes(), ids, [-0.5] * len(ids), text)  # type: ignore[arg-type]
    assert pieces == (("a", -0.5), ("é", -1.0), ("✓", -1.5), (UNKNOWN, -0.5))
    assert token_pieces(Bytes(), ids, [-0.5] * len(ids), " " + text) == ()  # type: ignore[arg-type]
