"""Test that views of large fleets are made in turns, and are the same as when they are made at once."""

from __future__ import annotations

from coordinator.core.status.turns import Turns, at_once, slices


def test_items_are_cut_into_slices() -> None:
    assert list(slices([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(slices([], 2)) == []


def test_a_view_is_made_at_once_if_nothing_else_waits() -> None:
    def turns() -> Turns[str]:
        yield
        return "made"

    assert at_once(turns()) == "made"
