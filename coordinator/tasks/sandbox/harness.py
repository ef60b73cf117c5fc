"""Run a candidate program's tests that are statements. Copied into the sandbox, so it imports nothing of Rollcast.

Standard input holds {"token", "tests", "timeout_s"}; a test is [kind, code]. The answer to each test is one line on
standard output, which the program cannot precede with lines of its own. "value" tests return the value of their
expression, for the verifier to compare outside, where the program cannot interfere; "run" tests return the token if
they raise nothing.
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
    for kind, code in order["tests"]:
        os.write(answers, json.dumps(_answer(kind, code, namespace, order)).encode() + b"\n")


def _answer(kind: str, code: str, namespace: dict[str, Any], order: dict[str, Any]) -> list[str]:
    signal.setitimer(signal.ITIMER_REAL, order["timeout_s"])
    try:
        if kind == "value":
            exec(compile(f"{VALUE} = ({code})", "test", "exec"), namespace)
            return ["value", repr(namespace[VALUE])]
        exec(compile(code, "test", "exec"), namespace)
        return ["passed", order["token"]]
    except (Exception, TestTimeout) as error:
        return ["failed", type(error).__name__]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: Any) -> None:
    raise TestTimeout


if __name__ == "__main__":
    main()
