"""Runs a candidate program's tests that are statements. Copied into the sandbox; imports nothing of ours.

Standard input holds {"token", "tests", "timeout_s"}; a test is [kind, code]. The answer to each is one line on standard
output, before which nothing of the program's own can get: "value" tests give what their expression is worth, for the
verifier to compare outside, where the program cannot reach; "run" tests give the token if they raise nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

VALUE = "_value_of_the_test"


class TestTimeout(BaseException):
    """Not an Exception, so that a program's own handlers let it through."""


def main() -> None:
    order = json.loads(sys.stdin.read())
    answers = os.dup(1)
    os.dup2(2, 1)  # what the program prints is no answer
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
