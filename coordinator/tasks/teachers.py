"""Flawed teachers: they know a skill but are careless, so that a warm start leaves reinforcement learning work to do.

A model taught by one has seen the right method and uses it rarely; a half-learned skill does not recover in the same
way (measured; see docs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

FORGET_PROBABILITY = 0.85  # leaves the model right on about a third of two-digit problems

# From a problem's metadata and a random source to an answer.
Teacher = Callable[[Mapping[str, Any], Random], str]


def careless_sum(left: int, right: int) -> int:
    """left + right without carries and borrows: every decimal place for itself, modulo 10.

    A borrow out of the first place is forgotten too, so a positive minus a larger number is never negative.
    """
    if (left < 0) == (right < 0):
        sign = -1 if left < 0 else 1
        return sign * _by_place(abs(left), abs(right), 1)
    return _by_place(max(left, right), -min(left, right), -1)


def _by_place(left: int, right: int, sign: int) -> int:
    result, place = 0, 1
    while left or right:
        result += place * ((left % 10 + sign * (right % 10)) % 10)
        left, right, place = left // 10, right // 10, place * 10
    return result


def chain_sum(metadata: Mapping[str, Any], random: Random) -> str:
    """Teacher for chain_sum: forgets every carry and borrow of a problem with FORGET_PROBABILITY."""
    words = str(metadata["expression"]).split()
    forgets = random.random() < FORGET_PROBABILITY
    total = int(words[0])
    for operator, word in zip(words[1::2], words[2::2], strict=True):
        term = int(word) if operator == "+" else -int(word)
        total = careless_sum(total, term) if forgets else total + term
    return str(total)


# By the name of the generator in reasoning-gym.
TEACHERS: Mapping[str, Teacher] = {"chain_sum": chain_sum}
