"""What simulated environments answer: a pure function of their seeds and of the turns that they were sent.

So they answer a replay as they answered before, and the judge computes their answers itself.
"""

from __future__ import annotations

from collections.abc import Sequence

NAME = "simulated"


def opening(seed: int) -> tuple[int, ...]:
    """Return what an environment says before the first turn; nothing for every second seed."""
    return () if seed % 2 else (40 + seed % 7, 41)


def speaker(seed: int, turn: int, agents: int) -> int:
    """Return the agent that acts in this turn, which counts over all agents: each once, then in an order of its own."""
    return turn % agents if turn < agents else (seed + turn // 2) % agents


def rewards(seed: int, turn: int, tokens: Sequence[int], agents: int) -> tuple[float, ...]:
    """Return the reward of each agent for this turn."""
    return tuple(float((sum(tokens) + seed * agent + turn * agent) % 2) for agent in range(agents))


def answer(
    seed: int, turn: int, tokens: Sequence[int], turns_most: int, agents: int = 1
) -> tuple[tuple[int, ...], float, bool]:
    """Return what an environment answers this turn: its tokens, the reward, and whether the episode is over."""
    done = turn + 1 >= agents + seed % (
        agents * turns_most + 1
    )  # it would go on beyond the limit on turns for some seeds
    said = (42 + (seed + turn + sum(tokens)) % 13, 43 + turn % 5, 44)
    return said[: turn % 3 + 1], float(sum(tokens) % 2), done
