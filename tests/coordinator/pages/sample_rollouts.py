"""Make the views of rollouts for tests of pages: an episode with a tool, and answers of two versions to one problem."""

from __future__ import annotations

from typing import Any

PROMPT = "A baker sells 17 loaves at 3 euros each and 4 cakes at 12 euros each. How much is that together?"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "17*3 + 4*12"}}\n</tool_call>'
PIECES = (("The", -0.02), (" sum", -0.4), (" is", -0.05), (" **", -1.9), ("99", -0.01), ("**", -3.2), (".", -6.0))


def headline(number: int, **changes: Any) -> dict[str, Any]:
    """Return one row of the list; rollouts of the same tens answer the same problem."""
    right = number % 3 != 0
    return {
        "rollout_id": number,
        "problem_id": f"shop:{number // 10}",
        "sample_index": number % 4,
        "agent": ("teller", "listener")[number % 2] if number // 10 == 5 else "",
        "version": 80 + number % 10,
        "peer": f"gpu-{number % 5}",
        "age": None if number % 4 == 0 else number % 3,
        "state": "dropped" if number % 4 == 0 else "trained",
        "tokens": 40 + 13 * number,
        "turns": 3,
        "reward": 1.0 if right else 0.25,
        "exact": right,
        "detail": "" if right else "expected 99, found 102",
        "parts": {"correct": float(right), "format": 0.25},
        "beginning": f"<tool_call> answer {number} begins with a call of the calculator and goes on for long",
        **changes,
    }


def sample_rollout(number: int) -> dict[str, Any]:
    """Return one rollout in full: a call, the tool's answer, and an answer whose tokens have probabilities."""
    one = headline(number)
    turns = [("assistant", CALL, ()), ("tool", "99", ()), ("assistant", "".join(text for text, _ in PIECES), PIECES)]
    said = {"version": one["version"], "peer": one["peer"]}
    return {
        "headline": one,
        "prompt": PROMPT,
        "answer": "99",
        "turns": [{"role": role, "text": text, "tokens": tokens, **said} for role, text, tokens in turns],
        "tokens_left_out": 0,
    }


def sample_rollouts(query: dict[str, str]) -> dict[str, Any]:
    """Return the page that a query asks for; the newest forty of eighty rollouts are looked at for the first page."""
    before = int(query.get("before", 99))
    numbers = [number for number in range(79, 0, -1) if number < before and (number >= 40) == (before > 40)]
    found = [headline(number) for number in numbers]
    for name in ("problem", "peer", "version"):
        found = [
            one for one in found if query.get(name, "") in ("", str(one[f"{name}_id" if name == "problem" else name]))
        ]
    if {"age_max", "reward_max"} <= set(query):  # the oldest and the best are low enough for any test
        found = [one for one in found if one["age"] is not None]
    if query.get("wrong") == "true":
        found = [one for one in found if not one["exact"]]
    return {"rollouts": found, "next_before": 40 if before > 40 else None}
