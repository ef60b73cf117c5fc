"""Evaluate expressions with a candidate program. Copied into the sandbox, so it imports nothing of Rollcast.

Standard input holds {"expressions", "timeout_s"}. The answer to each expression is one line on standard output, which
the program cannot precede with lines of its own: ["value", repr] or ["failed", why]. What is wanted is not here: the
verifier compares outside. The program may forge every answer, and gains nothing that a right value would not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

VALUE = "_value_of_the_test"


class TestTimeout(BaseException):
    """A test timed out; not an Exception, so that a program's own handlers do not catch it."""


def main() -> None:
    order = json.loads(sys.stdin.read())
    answers = os.dup(1)
    os.dup2(2, 1)  # the program's own output goes to stderr, so that it cannot pass as an answer
    namespace: dict[str, Any] = {"__name__": "candidate"}
    with open("candidate.py", encoding="utf-8") as file:
        source = file.read()
    exec(compile(source, "candidate.py", "exec"), namespace)
    signal.signal(signal.SIGALRM, _too_long)
    for expression in order["expressions"]:
        answer = value_of(expression, namespace, order["timeout_s"])
        os.write(answers, json.dumps(answer).encode() + b"\n")


def value_of(expression: str, namespace: dict[str, Any], timeout_s: float) -> list[str]:
    """Return the line of one expression."""
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        exec(compile(f"{VALUE} = ({expression})", "test", "exec"), namespace)
        return ["value", repr(namespace[VALUE])]
    except (Exception, TestTimeout) as error:
        return ["failed", type(error).__name__]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: Any) -> None:
    raise TestTimeout


if __name__ == "__main__":
    main()
