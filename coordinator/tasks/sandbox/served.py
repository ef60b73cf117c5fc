"""Serve a candidate program's functions to the judge. Copied into the sandbox of the program.

Requests come as lines on standard input, answers go to standard output. The program may read and forge all of this: it
learns the arguments of calls and nothing of what is wanted, and the judge, in a sandbox of its own, decides.
"""

from __future__ import annotations

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

VALUE = "_value_of_the_test"


class TestTimeout(BaseException):
    """A request took too long; not an Exception, so that a program's own handlers do not catch it."""


class Server:
    """The program's namespace, and the objects that the judge knows by number."""

    def __init__(self, timeout_s: float) -> None:
        self.namespace: dict[str, Any] = {"__name__": "candidate"}
        self._timeout_s = timeout_s
        self._objects: list[Any] = []

    def load(self, source: str) -> None:
        """Run the program; whatever it raises ends this process."""
        exec(compile(source, "candidate.py", "exec"), self.namespace)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request; an error of the program is part of the answer."""
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
        try:
            return self._carry_out(request)
        except (Exception, TestTimeout) as error:
            return {"raised": type(error).__name__}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "names":
                names = {name: type(one).__name__ for name, one in self.namespace.items() if not name.startswith("__")}
                return {"names": names}
            case "global":
                return {"value": self._encode(self.namespace[request["name"]])}
            case "eval":
                return {"value": self._encode(self._value_of(request["code"]))}
            case "get":
                return {"value": self._encode(getattr(self._objects[request["object"]], request["name"]))}
            case _:
                return self._call(request)

    def _value_of(self, expression: str) -> Any:
        exec(compile(f"{VALUE} = ({expression})", "test", "exec"), self.namespace)
        return self.namespace[VALUE]

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call an object, and return its result with its arguments, which it may have changed in place."""
        arguments = [decode(one, self._objects.__getitem__) for one in request["arguments"]]
        named = {name: decode(one, self._objects.__getitem__) for name, one in request["named"].items()}
        result = self._objects[request["object"]](*arguments, **named)
        return {"value": self._encode(result), "arguments": [self._encode(one) for one in arguments]}

    def _encode(self, value: Any) -> list[Any]:
        return encode(value, self._number_of)

    def _number_of(self, value: Any) -> int:
        self._objects.append(value)
        return len(self._objects) - 1


def _too_long(*_: Any) -> None:
    raise TestTimeout


def main() -> None:
    requests, answers = os.fdopen(os.dup(0)), os.dup(1)
    silence = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):  # the program's own input and output reach nobody
        os.dup2(silence, descriptor)
    signal.signal(signal.SIGALRM, _too_long)
    with open("timeout_s", encoding="utf-8") as file:
        server = Server(float(file.read()))
    with open("candidate.py", encoding="utf-8") as file:
        server.load(file.read())
    while line := requests.readline(LINE_BYTES_MAX):
        request = json.loads(line)
        answer = {**server.answer(request), "id": request["id"]}
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(answers, data) :]


if __name__ == "__main__":
    main()
