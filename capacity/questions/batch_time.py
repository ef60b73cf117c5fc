"""Compute how long GPUs take to generate one whole batch: what a synchronous step waits for before it trains."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

Pace = Callable[[float, float], float]
"""(rollouts in flight, mean context in tokens) -> seconds between two tokens of a rollout."""


def batch_seconds(lengths: Sequence[float], pace: Pace, *, concurrency_max: int, prompt_tokens: float) -> float:
    """Return the seconds until the last of these rollouts ends on one GPU that generates nothing else.

    All rollouts in flight advance by one token a step, so that the step changes only when one ends: its place goes to
    the next that waits, or stays empty, which makes the others faster.

    Args:
        lengths: tokens of each rollout, in the order in which they begin.
        concurrency_max: rollouts in flight at most.

    Raises:
        ValueError: ``concurrency_max`` is not positive.
    """
    if concurrency_max < 1:
        raise ValueError("a GPU without room for a rollout generates none")
    waiting = iter(lengths[concurrency_max:])
    running = [(length, 0.0) for length in lengths[:concurrency_max]]  # (token at which it ends, at which it began)
    heapq.heapify(running)
    begun, token, seconds = 0.0, 0.0, 0.0  # sum of the tokens at which those in flight began
    while running:
        ends, began = running[0]
        made_so_far = (token + ends) / 2 - begun / len(running)
        seconds += (ends - token) * pace(len(running), prompt_tokens + made_so_far)
        token = ends
        following = next(waiting, None)
        if following is None:
            heapq.heappop(running)
            begun -= began
        else:
            heapq.heapreplace(running, (token + following, token))
            begun += token - began
    return seconds
