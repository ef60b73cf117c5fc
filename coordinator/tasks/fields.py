"""Read a problem's parts from a row of any source, by the configuration's field mapping."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.config.tasks import FieldsConfig
from coordinator.tasks.checks.code_tests import CodeTests, read_tests
from rollcast.wire.text.chat_template import Message
from rollcast.wire.text.data_files import COLUMNS_SHOWN, ROW_BYTES_MAX, BadRow

PROMPT_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Row:
    """One problem as its source has it. ``answer`` may be empty if there are ``tests``.

    Args:
        messages: the prompt, if it is a conversation; ``prompt`` is its texts then, a line each.
    """

    prompt: str
    answer: str
    tests: CodeTests | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()


def row_of(value: Any, fields: FieldsConfig, where: str) -> Row:
    """Read one row.

    Raises:
        BadRow: a column is missing, empty, of another type, or too long.
    """
    if not isinstance(value, Mapping):
        raise BadRow(where, "not an object")
    prompt, messages = _prompt(value, fields.prompt, where)
    answer = _text(value, fields.answer, where) if fields.answer else ""
    tests = None
    if fields.tests:
        try:
            tests = read_tests(_found(value, fields.tests, where))
        except ValueError as error:
            raise BadRow(where, f"{fields.tests!r} has no tests that can be run", str(error)) from None
    metadata = {name: _plain(_found(value, name, where)) for name in fields.metadata}
    row = Row(prompt, answer, tests, metadata, messages)
    size = len(prompt.encode()) + len(answer.encode()) + len(json.dumps(metadata))
    size += len(json.dumps(tests.to_json())) if tests else 0
    if size > ROW_BYTES_MAX:
        raise BadRow(where, "the row is too long", f"it has {size} bytes, and at most {ROW_BYTES_MAX} are allowed")
    return row


def _prompt(value: Mapping[str, Any], path: str, where: str) -> tuple[str, tuple[Message, ...]]:
    """Return a prompt's text, and its messages if it is a conversation that ends with the user's."""
    found = _found(value, path, where)
    if not isinstance(found, list):
        return _text(value, path, where), ()
    messages = []
    for number, one in enumerate(found, start=1):
        role, content = (one.get("role"), one.get("content")) if isinstance(one, Mapping) else (None, None)
        if role not in PROMPT_ROLES or not isinstance(content, str) or _has_surrogates(content):
            cause = f"message {number} lacks a role ({', '.join(PROMPT_ROLES)}) or a text as content"
            raise BadRow(where, f"{path!r} is neither a text nor chat messages", cause)
        messages.append({"role": role, "content": content})
    text = "\n".join(one["content"] for one in messages)
    if not text.strip() or messages[-1]["role"] != "user":
        raise BadRow(where, f"{path!r} does not end with a message of the user", "there is nothing to answer")
    return text, tuple(messages)


def _text(value: Mapping[str, Any], path: str, where: str) -> str:
    found = _found(value, path, where)
    if isinstance(found, int | float) and not isinstance(found, bool):
        found = json.dumps(found)
    if not isinstance(found, str):
        raise BadRow(where, f"{path!r} is missing or not a text", f"it is {type(found).__name__}")
    if not found.strip() or _has_surrogates(found):
        cause = "it has half of a character, a lone surrogate" if found.strip() else "it is empty"
        raise BadRow(where, f"{path!r} is missing or not a text", cause)
    return found


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
