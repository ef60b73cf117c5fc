"""Carry errors across the network with the same code, what, cause and fix."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rollcast.runtime import errors
from rollcast.runtime.errors import RollcastError
from rollcast.wire.limits import TEXT_LENGTH_MAX


def error_to_json(error: RollcastError) -> str:
    """Return an error as the JSON object {"code", "what", "cause", "fix"} of HTTP bodies and gRPC details."""
    texts = {"what": error.what, "cause": error.cause, "fix": error.fix}
    return json.dumps({"code": error.code, **{key: text[:TEXT_LENGTH_MAX] for key, text in texts.items()}})


def error_from_json(text: str | bytes) -> RollcastError | None:
    """Return the error in such a text as an instance of its class; None if it is no error or its code is unknown."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not all(isinstance(value.get(key, ""), str) for key in _KEYS):
        return None
    kind = _BY_CODE.get(value.get("code", ""))
    if kind is None:
        return None
    what, cause, fix = (_printable(value.get(key, "")) for key in _KEYS[1:])
    return kind(what or "the other side gave no reason", cause=cause, fix=fix)


_KEYS = ("code", "what", "cause", "fix")


def _printable(text: str) -> str:
    """Replace control characters, which an untrusted process must not write to our terminal."""
    return "".join(character if character.isprintable() else " " for character in text[:TEXT_LENGTH_MAX])


def _kinds() -> Iterator[type[RollcastError]]:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, RollcastError):
            yield value


_BY_CODE = {kind.code: kind for kind in _kinds()}
