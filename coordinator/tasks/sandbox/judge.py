"""Run tests that are statements, and decide. Copied into a sandbox of its own, apart from the program that is tested.

The program's names stand for its objects in the other sandbox: a call sends its arguments there and brings a plain
value back. So the program never sees a test, and no answer of its own can decide one: comparisons of plain values, the
tests' helpers and the standard library run here.

order.json holds {"setup", "tests", "timeout_s"}; a test has the fields of checks/statements.py. Requests go to standard
output, answers come on standard input, and a line for each test goes to standard error: ["passed"] or ["failed", why].
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import signal
import sys
from typing import Any

if __package__:
    from coordinator.tasks.sandbox.values import LINE_BYTES_MAX, decode, encode
else:  # in the sandbox, where it lies beside this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from values import LINE_BYTES_MAX, decode, encode  # type: ignore[import-not-found,no-redef]

ANSWER_MARGIN_S = 0.5  # beyond the program's own time limit, so that its answer comes before we give up


class TestTimeout(BaseException):
    """A test timed out; not an Exception, so that a test's own handlers do not catch it."""


class RemoteError(Exception):
    """The program raised an error that is no built-in one."""


class Program:
    """The program in its sandbox."""

    def __init__(self, requests: int, answers: Any) -> None:
        self._requests, self._answers, self._count = requests, answers, 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer; answers to requests that timed out are discarded.

        Raises:
            Exception: the program's own, by its name where it is built in.
            EOFError: the program has ended.
        """
        self._count += 1
        data = json.dumps({**request, "id": self._count}).encode() + b"\n"
        if len(data) > LINE_BYTES_MAX:
            raise ValueError("the arguments are too large")
        while data:
            data = data[os.write(self._requests, data) :]
        while True:
            line = self._answers.readline(LINE_BYTES_MAX)
            if not line.endswith("\n"):
                raise EOFError("the program has ended, or answers too much")
            answer = json.loads(line)
            if isinstance(answer, dict) and answer.get("id") == self._count:
                break
        if "raised" in answer:
            raise _error_named(str(answer["raised"]))
        return answer

    def value(self, answer: dict[str, Any]) -> Any:
        """Return the value of an answer: a plain value, or a Remote."""
        return decode(answer["value"], self.remote)

    def remote(self, number: int) -> Remote:
        return Remote(self, number)


def _error_named(name: str) -> BaseException:
    if name == "TestTimeout":
        return TestTimeout()
    found = getattr(builtins, name, None)
    return found() if isinstance(found, type) and issubclass(found, Exception) else RemoteError(name)


class Remote:
    """An object of the program. Comparisons with plain values are never equal, whatever its class says."""

    def __init__(self, program: Program, number: int) -> None:
        self._program, self._number = program, number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        request = {
            "do": "call",
            "object": self._number,
            "arguments": [encode(one, _number_of) for one in arguments],
            "named": {name: encode(one, _number_of) for name, one in named.items()},
        }
        answer = self._program.ask(request)
        for mine, changed in zip(arguments, answer.get("arguments", ()), strict=False):
            _take_over(mine, decode(changed, self._program.remote))
        return self._program.value(answer)

    def __getattr__(self, name: str) -> Any:
        return self._program.value(self._program.ask({"do": "get", "object": self._number, "name": name}))

    def __len__(self) -> int:
        found = self.__getattr__("__len__")()
        if type(found) is not int:
            raise TypeError("a length is a whole number")
        return found

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__("__getitem__")(key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remote):
            return False
        return self.__getattr__("__eq__")(other) is True

    __hash__ = None  # type: ignore[assignment]


def _number_of(value: Any) -> int:
    if isinstance(value, Remote):
        return value._number
    raise TypeError(f"a {type(value).__name__} cannot be passed to the program")


def _take_over(mine: Any, changed: Any) -> None:
    """Change an argument as the program changed its copy."""
    if type(mine) is not type(changed):
        return
    if type(mine) in (list, bytearray):
        mine[:] = changed
    elif type(mine) in (set, dict):
        mine.clear()
        mine.update(changed)


def namespace_of(program: Program, setup: str) -> tuple[dict[str, Any], set[str]]:
    """Return the tests' names, those of the setup and then the program's, and which of them are the program's.

    Built-in names stay those of Python, and modules of the standard library are imported here, whatever the program
    put in their place.
    """
    namespace: dict[str, Any] = {"__name__": "tests"}
    exec(compile(setup, "setup", "exec"), namespace)
    helpers, remote = set(namespace), set()
    for name, kind in program.ask({"do": "names"})["names"].items():
        if hasattr(builtins, name) or not name.isidentifier():
            continue
        if kind == "module" and name in sys.stdlib_module_names:
            namespace[name] = importlib.import_module(name)
        elif name not in helpers:
            namespace[name] = program.value(program.ask({"do": "global", "name": name}))
            remote.add(name)
    return namespace, remote


def run_test(test: dict[str, Any], namespace: dict[str, Any], program: Program, remote: set[str]) -> list[str]:
    """Run one test, and return its line.

    If the program knows all names of a comparison, it evaluates the whole expression, so that arguments may be such as
    cannot be sent, functions for example.

    Args:
        remote: names that stand for the program's objects; those that the test sets itself are taken out.
    """
    try:
        if test["root"] in remote and remote.issuperset(test["names"]):
            found = program.value(program.ask({"do": "eval", "code": test["expression"]}))
            assert found == ast.literal_eval(test["wanted"])
        else:
            exec(compile(test["code"], "test", "exec"), namespace)
        return ["passed"]
    except (Exception, TestTimeout) as error:
        return ["failed", type(error).__name__]
    finally:
        remote.difference_update(test["sets"])


def _too_long(*_: Any) -> None:
    raise TestTimeout


def main() -> None:
    answers, requests, verdicts = os.fdopen(os.dup(0)), os.dup(1), os.dup(2)
    silence = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):  # what tests print must not pass for a request or a verdict
        os.dup2(silence, descriptor)
    with open("order.json", encoding="utf-8") as file:
        order = json.load(file)
    program = Program(requests, answers)
    namespace, remote = namespace_of(program, order["setup"])
    signal.signal(signal.SIGALRM, _too_long)
    for test in order["tests"]:
        signal.setitimer(signal.ITIMER_REAL, order["timeout_s"] + ANSWER_MARGIN_S)
        verdict = run_test(test, namespace, program, remote)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(verdicts, json.dumps(verdict).encode() + b"\n")


if __name__ == "__main__":
    main()
