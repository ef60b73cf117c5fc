from __future__ import annotations

from coordinator.tasks.checks.task import Problem
from coordinator.tasks.token_limits import TokenLimits
from rollcast.wire.text.tokenizer import Tokenizer


def test_why_a_problem_cannot_be_used() -> None:
    limits = TokenLimits(Tokenizer((), "ab"), 3, 2)
    asked = [("ab", "a"), ("abab", "a"), ("ab", "ab"), ("ab", "c"), ("c", "a")]
    found = [limits.look_at(Problem("x:0", prompt, answer, {})) for prompt, answer in asked]
    assert found == [
        ((2, 3), ""),
        (None, "too_long"),
        (None, "answer_too_long"),
        (None, "unknown_characters"),
        (None, "unknown_characters"),
    ]
    assert limits.higher_limits() == ["raise sampling.prompt_tokens_max to 4 and sampling.new_tokens_max to 3"]
    assert "2 have characters that the tokenizer lacks" in limits.lengths()
