"""Encode verdicts as JSON values between verifier workers and the coordinator, and check what workers send.

["scored", reward, exact, detail, {part: value}]     ["failed", reason, detail, retryable]
"""

from __future__ import annotations

import math
from typing import Any

from coordinator.tasks.checks.task import FAILURE_REASONS, Score
from coordinator.verifiers.scorer import DETAIL_LENGTH_MAX, Failed, Scored, Verdict

PARTS_MAX = 32
PART_NAME_LENGTH_MAX = 64


def verdict_message(verdict: Verdict) -> list[Any]:
    """Return a verdict as JSON values, within the limits of read_verdict. Of long details the end is kept."""
    if isinstance(verdict, Failed):
        return ["failed", verdict.reason, verdict.detail[-DETAIL_LENGTH_MAX:], verdict.retryable]
    score = verdict.score
    parts = {name[:PART_NAME_LENGTH_MAX]: value for name, value in list(score.parts.items())[:PARTS_MAX]}
    return ["scored", score.reward, score.exact, score.detail[-DETAIL_LENGTH_MAX:], parts]


def read_verdict(key: str, message: Any) -> Verdict | None:
    """Return what verdict_message wrote, under this key; None if the message is something else.

    A reward or part that is not a finite number is the failure of the function that returned it.
    """
    match message:
        case ["failed", str() as reason, str() as detail, bool() as retryable] if reason in FAILURE_REASONS:
            return Failed(key, reason, _clean(detail), retryable)
        case ["scored", int() | float() as reward, bool() as exact, str() as detail, dict() as parts]:
            if len(parts) > PARTS_MAX or not all(_is_part(name, value) for name, value in parts.items()):
                return None
            found = {_clean(name): _float(value) for name, value in parts.items()}
            for name, value in (("reward", _float(reward)), *found.items()):
                if not math.isfinite(value):
                    return Failed(key, "exception", f"the verifier's {name} is {value}", retryable=False)
            return Scored(key, Score(_float(reward), exact, _clean(detail), found))
    return None


def _is_part(name: Any, value: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= PART_NAME_LENGTH_MAX and isinstance(value, int | float)


def _float(value: float) -> float:
    """Return the number; an integer that is too large for a float is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _clean(text: str) -> str:
    """Return the end of a text, without halves of surrogate pairs, which no file can hold."""
    return text[-DETAIL_LENGTH_MAX:].encode(errors="replace").decode()
