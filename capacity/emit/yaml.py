"""Write plain data as YAML that people can read and edit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_BLOCK = re.compile(r"[!-~][ -~]*\n([ -~]*\n)*[ -~]*[!-~]\n")
_NOT_TEXT = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


def yaml_of(value: Mapping[str, Any]) -> str:
    """Return a document in YAML 1.2, which YAML 1.1 reads alike.

    Args:
        value: mappings, sequences, texts, numbers, booleans and None. A text of whole lines becomes a literal block.
    """
    return "\n".join(_mapping(value, 0)) + "\n"


def _mapping(value: Mapping[str, Any], depth: int) -> Iterable[str]:
    pad = "  " * depth
    for key, item in value.items():
        name = _text(key)
        if isinstance(item, str) and _BLOCK.fullmatch(item):
            yield f"{pad}{name}: |"
            yield from (f"{pad}  {line}" if line else "" for line in item[:-1].split("\n"))
        elif isinstance(item, Mapping) and item:
            yield f"{pad}{name}:"
            yield from _mapping(item, depth + 1)
        elif isinstance(item, Sequence) and not isinstance(item, str) and item:
            yield f"{pad}{name}:"
            yield from _sequence(item, depth + 1)
        else:
            yield f"{pad}{name}: {_scalar(item)}"


def _sequence(value: Sequence[Any], depth: int) -> Iterable[str]:
    pad = "  " * depth
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *rest = _mapping(item, depth + 1)
            yield f"{pad}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{pad}- {_scalar(item)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_scalar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    return json.dumps(value)  # of numbers, booleans and None JSON is YAML


def _text(text: str) -> str:
    if _BARE.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    return '"' + "".join(_quoted(one) for one in text) + '"'


def _quoted(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if " " <= character <= "~" else f"\\U{ord(character):08x}"
