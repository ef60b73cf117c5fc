from __future__ import annotations

from typing import Any

from rollcast.cli.actions import outcome, preview_lines


def test_a_preview_is_a_sentence_a_table_and_warnings() -> None:
    none: dict[str, Any] = dict.fromkeys(
        ("utilisation", "steps_per_hour", "workers_on", "usd_per_hour", "t_bcast_s", "staleness_needed")
    )
    answer = {
        "sentence": "Fewer.",
        "now": {**none, "utilisation": 0.951, "workers_on": 3},
        "then": {**none, "utilisation": 0.5},
        "warnings": ["few"],
    }
    assert preview_lines(answer) == [
        "Fewer.",
        "                       now      then",
        "learner busy           95%       50%",
        "workers on               3         -",
        "warning: few",
    ]


def test_what_was_done_and_what_was_not() -> None:
    answer = {"done": ["a"], "failed": [{"peer": "b", "error": "it is banned"}]}
    assert outcome("pin_on", answer) == ["pin on: a", "not done: b: it is banned"]
