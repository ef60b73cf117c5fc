from __future__ import annotations

from typing import Any

from coordinator.tasks.sandbox import harness

ORDER = {"token": "secret", "timeout_s": 5.0}


def answer(kind: str, code: str, **namespace: Any) -> list[str]:
    return harness._answer(kind, code, namespace, ORDER)


def test_answers() -> None:
    assert answer("value", "x + 1", x=2) == ["value", "3"]
    assert answer("run", "assert x == 2", x=2) == ["passed", "secret"]
    assert answer("run", "assert x == 2", x=3) == ["failed", "AssertionError"]
    assert answer("value", "nothing") == ["failed", "NameError"]
