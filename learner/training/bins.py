"""Which sequences share a row. Pure: the same lengths always give the same rows."""

from __future__ import annotations

from collections.abc import Sequence


def share_rows(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of the sequences of each row, by first fit in order of falling length.

    First-fit decreasing needs at most 11/9 of the fewest rows, and 6/9 of one (Dosa 2007).

    Raises:
        ValueError: a sequence is longer than ``capacity``.
    """
    if any(length > capacity for length in lengths):
        raise ValueError(f"a sequence of {max(lengths)} tokens does not fit into a row of {capacity}")
    rows: list[list[int]] = []
    left: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        place = next((row for row, room in enumerate(left) if room >= lengths[index]), None)
        if place is None:
            rows.append([])
            left.append(capacity)
            place = len(rows) - 1
        rows[place].append(index)
        left[place] -= lengths[index]
    return rows
