"""Read a problem's parts from a row of any source, by the configuration's field mapping."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.config.tasks import FieldsConfig
from coordinator.tasks.checks.code_tests import CodeTests, read_tests
from rollcast.wire.text.data_files import COLUMNS_SHOWN, ROW_BYTES_MAX, BadRow


@dataclass(frozen=True, slots=True)
class Row:
    """One problem as its source has it. ``answer`` may be empty if there are ``tests``."""

    prompt: str
    answer: str
    tests: CodeTests | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def row_of(value: Any, fields: FieldsConfig, where: str) -> Row:
    """Read one row.

    Raises:
        BadRow: a column is missing, empty, of another type, or too long.
    """
    if not isinstance(value, Mapping):
        raise BadRow(where, "not an object")
    prompt = _text(value, fields.prompt, where)
    answer = _text(value, fields.answer, where) if fields.answer else ""
    tests = None
    if fields.tests:
        try:
            tests = read_tests(_found(value, fields.tests, where))
        except ValueError as error:
            raise BadRow(where, f"{fields.tests!r} has no tests that can be run", str(error)) from None
    metadata = {name: _plain(_found(value, name, where)) for name in fields.metadata}
    row = Row(prompt, answer, tests, metadata)
    size = len(prompt.encode()) + len(answer.encode()) + len(json.dumps(metadata))
    size += len(json.dumps(tests.to_json())) if tests else 0
    if size > ROW_BYTES_MAX:
        raise BadRow(where, "the row is too long", f"it has {size} bytes, and at most {ROW_BYTES_MAX} are allowed")
    return row


def _text(value: Mapping[str, Any], path: str, where: str) -> str:
    found = _found(value, path, where)
    if isinstance(found, int | float) and not isinstance(found, bool):
        found = json.dumps(found)
    if not isinstance(found, str):
        raise BadRow(where, f"{path!r} is missing or not a text", f"it is {_kind(found, path)}")
    if not found.strip() or _has_surrogates(found):
        cause = "it has half of a character, a lone surrogate" if found.strip() else "it is empty"
        raise BadRow(where, f"{path!r} is missing or not a text", cause)
    return found


def _kind(found: Any, path: str) -> str:
    """Return what stands in the place of a text; of chat messages, a common form of prompts, also a path to a text."""
    last = found[-1] if isinstance(found, list) and found else None
    if isinstance(last, Mapping) and "content" in last:
        return f"a list of chat messages; {f'{path}.{len(found) - 1}.content'!r} is the text of the last one"
    return type(found).__name__


def _found(value: Any, path: str, where: str) -> Any:
    """Return the value at a dotted path; a column with exactly that name takes precedence."""
    if isinstance(value, Mapping) and path in value:
        return value[path]
    at = value
    for part in path.split("."):
        if isinstance(at, Mapping) and part in at:
            at = at[part]
        elif isinstance(at, list) and part.isdecimal() and int(part) < len(at):
            at = at[int(part)]
        else:
            columns = ", ".join(sorted(map(str, value))[:COLUMNS_SHOWN]) if isinstance(value, Mapping) else ""
            raise BadRow(where, f"{path!r} is missing or not a text", f"the row has {columns or 'no columns'}")
    return at


def _plain(value: Any) -> Any:
    """Return the value as JSON holds it; what JSON cannot hold becomes text."""
    return json.loads(json.dumps(value, default=str))


def _has_surrogates(text: str) -> bool:
    """Decide whether a text has surrogates: JSON can hold half characters, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
