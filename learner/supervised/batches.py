"""Plan which examples each step trains on, and in which row. Pure: equal lengths and seeds give equal plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollcast.policy.kernels.cudnn import ROW_SEQUENCES_MAX

Rows = list[list[int]]  # indices of the examples of each row


def plan_epoch(lengths: Sequence[int], *, rows: int, row_tokens: int, seed: int, epoch: int) -> list[Rows]:
    """Return the batches of a pass over all examples, in an order of its own.

    A batch takes examples in that order, each into the first of its rows with room for it, until one fits into none.
    So a batch's examples are random, which packing by length would not leave them.

    Args:
        lengths: tokens of each example, none above row_tokens.
        rows: rows of a batch; the last batch may have fewer.
        seed: the seed of the orders of all epochs.
        epoch: number of the pass.
    """
    batches: list[Rows] = []
    batch, left = _empty(rows, row_tokens)
    for index in np.random.default_rng([seed, epoch]).permutation(len(lengths)).tolist():
        place = _first_fit(batch, left, lengths[index])
        if place is None:
            batches.append(batch)
            batch, left = _empty(rows, row_tokens)
            place = 0
        batch[place].append(index)
        left[place] -= lengths[index]
    batches.append([row for row in batch if row])
    return [batch for batch in batches if batch]


def most_in_a_row(plans: Sequence[Sequence[Rows]]) -> int:
    """Return an upper bound of the examples of any row: a power of two, so that all batches compile once."""
    most = max((len(row) for plan in plans for batch in plan for row in batch), default=1)
    return 1 << (most - 1).bit_length()


def held_out(examples: int, share: float, most: int, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which examples are held out, bool [examples]: at random, at least one if the share is above 0."""
    count = min(most, max(1, round(share * examples))) if share and examples > 1 else 0
    chosen = np.zeros(examples, bool)
    chosen[np.random.default_rng([seed, 1 << 32]).permutation(examples)[:count]] = True
    return chosen


def _empty(rows: int, row_tokens: int) -> tuple[Rows, list[int]]:
    return [[] for _ in range(rows)], [row_tokens] * rows


def _first_fit(batch: Rows, left: Sequence[int], length: int) -> int | None:
    fits = (row for row, room in enumerate(left) if room >= length and len(batch[row]) < ROW_SEQUENCES_MAX)
    return next(fits, None)
