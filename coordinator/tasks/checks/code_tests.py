"""Read unit tests of programming problems, in the forms in which data sets have them.

    ["assert add(1, 2) == 3", ...]                       statements run after the program
    [{"input": "1 2\\n", "output": "3\\n"}, ...]           standard input, expected output
    {"inputs": ["1 2\\n", ...], "outputs": ["3\\n", ...]}  the same as two lists

Each form may also be JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SETUP_LENGTH_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class CodeTests:
    """Tests: ``statements``, or pairs of standard input and expected output; ``setup`` runs before the program."""

    statements: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    setup: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the tests as a problem's data hold them."""
        return {"statements": list(self.statements), "pairs": [list(pair) for pair in self.pairs], "setup": self.setup}

    @property
    def count(self) -> int:
        """Return the number of tests."""
        return len(self.statements) or len(self.pairs)


def read_tests(value: Any) -> CodeTests:
    """Read tests in any of the forms above, or as CodeTests.to_json wrote them.

    Raises:
        ValueError: the value has none of these forms, or has no test; the message gives the reason.
    """
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith(("[", "{")):
            return _statements(_split(text))
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it begins like JSON and is not JSON: {error}") from None
    if isinstance(value, Mapping):
        return _of_object(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        if all(isinstance(one, str) for one in value):
            return _statements([one for one in value if one.strip()])
        if all(isinstance(one, Mapping) and "input" in one and "output" in one for one in value):
            return _pairs([(one["input"], one["output"]) for one in value])
    raise ValueError('expected statements, {"input", "output"} objects, or {"inputs": [...], "outputs": [...]}')


def _of_object(value: Mapping[str, Any]) -> CodeTests:
    setup = value.get("setup", "")
    if not isinstance(setup, str) or len(setup) > SETUP_LENGTH_MAX:
        raise ValueError("the setup is not a text, or is too long")
    if value.get("statements"):
        return CodeTests(_statements(list(value["statements"])).statements, (), setup)
    if value.get("pairs"):
        return CodeTests((), _pairs([tuple(pair) for pair in value["pairs"]]).pairs, setup)
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
        return CodeTests((), _pairs(list(zip(inputs, outputs, strict=True))).pairs, setup)
    raise ValueError('an object of tests needs "inputs" and "outputs" of the same length')


def _statements(found: Sequence[Any]) -> CodeTests:
    if not found or not all(isinstance(one, str) for one in found):
        raise ValueError("there is no test")
    return CodeTests(tuple(found))


def _pairs(found: Sequence[Any]) -> CodeTests:
    if not found:
        raise ValueError("there is no test")
    return CodeTests((), tuple((_lines(given), _lines(wanted)) for given, wanted in found))


def _lines(value: Any) -> str:
    """Return text; some data sets have lists of lines instead."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise ValueError("input and output must be text")


def _split(text: str) -> list[str]:
    """Split a text into statements, one per line; indented lines and closing brackets belong to the one before."""
    statements: list[str] = []
    for line in text.splitlines():
        if statements and (line[:1].isspace() or line.startswith((")", "]", "}"))):
            statements[-1] += "\n" + line
        elif line.strip():
            statements.append(line)
    return statements
