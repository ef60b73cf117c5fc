"""Test that verdicts survive their encoding, and that workers cannot send anything else."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from coordinator.tasks.checks.task import Score
from coordinator.verifiers.messages import PARTS_MAX, read_verdict, verdict_message
from coordinator.verifiers.scorer import DETAIL_LENGTH_MAX, Failed, Scored


@pytest.mark.parametrize(
    "verdict",
    [
        Scored("a", Score(-1.5, False, "why", {"format": 0.25})),
        Failed("a", "exception", "ValueError: no", False),
        Failed("a", "timeout"),
    ],
)
def test_verdicts_survive(verdict: Scored | Failed) -> None:
    assert read_verdict("a", json.loads(json.dumps(verdict_message(verdict)))) == verdict


def test_long_details_keep_their_end_and_parts_their_bound() -> None:
    failed = Failed("a", "exception", "x" * DETAIL_LENGTH_MAX + "the end")
    found = read_verdict("a", verdict_message(failed))
    assert isinstance(found, Failed)
    assert (len(found.detail), found.detail[-7:]) == (DETAIL_LENGTH_MAX, "the end")
    many = Scored("a", Score(1.0, True, "\ud800", {f"part {n}": 0.0 for n in range(2 * PARTS_MAX)}))
    found = read_verdict("a", verdict_message(many))
    assert isinstance(found, Scored)
    assert (found.score.detail, len(found.score.parts)) == ("?", PARTS_MAX)


@pytest.mark.parametrize("number", [math.nan, math.inf, 10**400])
def test_what_is_no_number_is_a_failure(number: float) -> None:
    for message in (["scored", number, True, "", {}], ["scored", 1.0, True, "", {"format": number}]):
        found = read_verdict("a", message)
        assert isinstance(found, Failed)
        assert (found.reason, found.retryable) == ("exception", False)


@pytest.mark.parametrize(
    "message",
    [
        *(None, 1, [], ["scored"], ["scored", "1", True, "", {}], ["scored", 1.0, True, "", []]),
        *(["scored", 1.0, True, "", {"": 1.0}], ["scored", 1.0, True, "", {"a": "b"}], ["failed", "bored", "", True]),
        ["scored", 1.0, True, "", {str(n): 1.0 for n in range(PARTS_MAX + 1)}],
    ],
)
def test_anything_else_is_refused(message: Any) -> None:
    assert read_verdict("a", message) is None
